#pragma once
// GPT-2's pre-tokenization, written by hand: the pieces that the pattern
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// matches one after the other. The pieces cover the text; each is at least one character long.
//
//   for (const char* p = begin; p < end;) { const char* q = gpt2_piece_end(p, end); use({p, q}); p
//   = q; }

namespace trireme::text {

/// Where the piece that begins at `p` ends; p < end.
const char* gpt2_piece_end(const char* p, const char* end);

}  // namespace trireme::text
