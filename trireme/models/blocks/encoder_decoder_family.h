#pragma once
// What families of an encoder and a decoder share: which head a configuration names, which half it looks at, what config.json
// says of it. A family reads its keys into a Halves; each half alone is the same chain without the other.
//
//   Family t5_family() { return encoder_decoder_family({.name = "t5", .class_name = "T5", ...}, read); }

#include "trireme/models/blocks/encoder.h"
#include "trireme/models/family.h"

namespace trireme::models {

struct Halves {
  EncoderDecoderSpec chain = {};  // its head without scores
  FamilyHeads scores = {};
};

struct EncoderDecoderFamily {
  std::string name = "", class_name = "";  // class_name: of its classes, without the head's
  std::vector<HeadKind> heads = {};       // besides seq2seq
  std::vector<HeadKind> of_encoder = {};  // those that look at the encoder's states; a causal_lm is the decoder alone
  int64_t labels = 2;                     // that a configuration without any has
  std::string tensor = "", ties = "";     // of Support
};

/// Dense, tanh and scores at the last `end` of a row.
RowScores classes_at_end(int64_t end, double dropout);

/// `read` fills in the halves from a tree and refuses what it does not know; `kind` is the head.
Family encoder_decoder_family(const EncoderDecoderFamily& family, std::function<Halves(ConfigReader& get, HeadKind kind)> read);

}  // namespace trireme::models
