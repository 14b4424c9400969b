#!/usr/bin/env python3
"""Writes trireme/text/unicode_*.inc: what Hugging Face's `tokenizers` (the version installed here) takes each code point
for, asked of the library itself, one code point at a time. Its parts follow different Unicode versions, so each table is
asked of the part that uses it. Grapheme clusters cannot be asked; they come from the Python package `regex`."""

import itertools
import pathlib
import unicodedata

import regex
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

SCALARS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CHUNK = 4096
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
SCRIPTS = ("Arabic Armenian Bengali Cyrillic Devanagari Ethiopic Georgian Greek Han Hangul Hebrew Hiragana Katakana Khmer "
           "Lao Latin Myanmar Tamil Thai Tibetan").split()
FOLDER = pathlib.Path(__file__).parent.parent / "trireme/text"


def chunks(codes=SCALARS, size=CHUNK):
    return [codes[i:i + size] for i in range(0, len(codes), size)]


def split_matches(splitter):
    """Code points of the pieces that a pre-tokenizer keeps."""
    found = []
    for codes in chunks():
        for _, (begin, end) in splitter.pre_tokenize_str("".join(map(chr, codes))):
            found.extend(codes[begin:end])
    return found


def matching(pattern):
    """Code points that the library's regular expressions match."""
    return split_matches(pre_tokenizers.Split(Regex(pattern), "removed", invert=True))


def others(codes):
    taken = set(codes)
    return [c for c in SCALARS if c not in taken]


def word_characters():
    """Code points next to which a `single_word` added token is not recognised."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("<<", single_word=True)])
    token = tokenizer.token_to_id("<<")
    found = []
    for codes in chunks():
        encoding = tokenizer.encode("".join(f" <<{chr(c)}" for c in codes))
        alone = {b for n, (b, _) in zip(encoding.ids, encoding.offsets) if n == token}
        found.extend(c for k, c in enumerate(codes) if 4 * k + 1 not in alone)
    return found


def removed_by(normalizer):
    """Code points of which a normalizer leaves nothing."""
    return [c for c in SCALARS if normalizer.normalize_str(chr(c)) == ""]


def mapping(normalizer):
    """What a normalizer makes of each code point that it changes."""
    changed = {}
    for c in SCALARS:
        text = normalizer.normalize_str(chr(c))
        if text != chr(c):
            changed[c] = text
    return changed


def combining_classes(decompose):
    """Canonical combining classes, found by the order that decomposition puts two marks into."""
    marks = [c for c in SCALARS if decompose(chr(c)) == chr(c) and
             (decompose("\u0345" + chr(c)) != "\u0345" + chr(c) or decompose(chr(c) + "\u0334") != chr(c) + "\u0334" or
              c in (0x345, 0x334))]
    known = {}
    for c in marks:
        if unicodedata.combining(chr(c)):
            known.setdefault(unicodedata.combining(chr(c)), c)
    classes = {}
    ladder = sorted(known.items())
    for c in marks:
        # `c` moves before a representative exactly when its class is lower.
        above = [k for k, rep in ladder if decompose(chr(rep) + chr(c)) != chr(rep) + chr(c)]
        below = [k for k, rep in ladder if decompose(chr(c) + chr(rep)) != chr(c) + chr(rep)]
        equal = [k for k, _ in ladder if k not in above and k not in below]
        assert len(equal) == 1, (hex(c), equal)
        classes[c] = equal[0]
    return classes


def compositions(canonical, compose):
    """(first, second) -> composed, from the code points that composition restores."""
    pairs = {}
    for c, parts in canonical.items():
        if len(parts) < 2 or compose(parts) != chr(c) or 0xAC00 <= c < 0xD7A4:
            continue
        head = compose(parts[:-1])
        assert len(head) == 1, hex(c)
        pairs[ord(head), ord(parts[-1])] = c
    return pairs


def script_classes():
    """Numbers such that the UnicodeScripts pre-tokenizer cuts exactly between different ones; 0 joins with all."""
    names = [n for n in regex._regex_core.PROPERTIES["SCRIPT"][1]]
    predicted, representatives = {}, {}
    everything = "".join(map(chr, SCALARS))
    seen = {}
    for name in names:
        codes = [ord(c) for c in regex.findall(rf"\p{{Script={name}}}", everything)]
        key = tuple(codes[:3])
        if not codes or key in seen:
            continue
        seen[key] = name
        for c in codes:
            predicted[c] = name
        representatives[name] = codes
    split = pre_tokenizers.UnicodeScripts()

    def cuts(pairs):
        """For each (a, b): whether the pre-tokenizer cuts between them when they are alone."""
        result = []
        for part in chunks(pairs, 2000):
            text = "".join(chr(a) + chr(b) for a, b in part)
            begins = {b for _, (b, _) in split.pre_tokenize_str(text)}
            result.extend(2 * k + 1 in begins for k in range(len(part)))
        return result

    probe = {}
    for name, codes in representatives.items():
        for c in codes[:400]:
            # A representative is cut from both a Latin and a Greek letter unless it is one of them.
            if cuts([(0x41, c)])[0] or cuts([(0x391, c)])[0]:
                probe[name] = c
                break
    classes, number = {}, {}
    pairs, keys = [], []
    for c in SCALARS:
        p = probe.get(predicted.get(c), 0x41)
        q = 0x41 if predicted.get(c) in ("GREEK", "Greek", "GREK") else 0x391
        pairs += [(p, c), (q, c)]
        keys.append((c, p))
    answers = cuts(pairs)
    for k, (c, p) in enumerate(keys):
        with_p, with_q = answers[2 * k], answers[2 * k + 1]
        if not with_p and not with_q:
            continue
        if with_p:
            match = [r for r, cut in zip(probe.values(), cuts([(r, c) for r in probe.values()])) if not cut]
            p = match[0] if match else c
            if not match:
                probe[f"new {c}"] = c
        classes[c] = number.setdefault(p, len(number) + 1)
    # Probes that are not cut from each other are one class.
    joined = {}
    items = list(number.items())
    for (a, m), (b, n) in itertools.combinations(items, 2):
        if not cuts([(a, b)])[0]:
            joined[n] = min(m, joined.get(n, n))
    return {c: joined.get(n, n) for c, n in classes.items()}


def graphemes():
    names = {"Control": "Control", "CR": "Control", "LF": "Control", "Extend": "Extend", "ZWJ": "Zwj", "Prepend": "Prepend",
             "SpacingMark": "SpacingMark", "L": "HangulL", "V": "HangulV", "T": "HangulT", "LV": "HangulLV",
             "LVT": "HangulLVT", "Regional_Indicator": "Regional"}
    everything = "".join(map(chr, SCALARS))
    table = {}
    for c in regex.findall(r"\p{Extended_Pictographic}", everything):
        table[ord(c)] = "Pictographic"
    for value, name in names.items():
        for c in regex.findall(rf"\p{{Grapheme_Cluster_Break={value}}}", everything):
            table[ord(c)] = name
    return table


def ranges(codes):
    result = []
    for c in sorted(codes):
        if result and result[-1][1] == c - 1:
            result[-1][1] = c
        else:
            result.append([c, c])
    return result


def valued_ranges(table):
    result = []
    for c, value in sorted(table.items()):
        if result and result[-1][1] == c - 1 and result[-1][2] == value:
            result[-1][1] = c
        else:
            result.append([c, c, value])
    return result


def array(kind, name, items):
    text, line = f"constexpr {kind} {name}[] = {{\n", "   "
    for item in items:
        item = f" {item},"
        if len(line) + len(item) > 100:
            text, line = text + line + "\n", "   "
        line += item
    return text + line + "\n};\n"


def table(name, codes):
    return array("CodeRange", name, (f"{{0x{a:X}, 0x{b:X}}}" for a, b in ranges(codes)))


def valued(kind, name, codes):
    return array(kind, name, (f"{{0x{a:X}, 0x{b:X}, {v}}}" for a, b, v in valued_ranges(codes)))


def write(name, body):
    (FOLDER / name).write_text(
        f"// Generated by tools/generate_unicode_tables.py from tokenizers {tokenizers.__version__}. Do not edit.\n"
        f"// clang-format off\n{body}// clang-format on\n")


def write_ranges():
    categories = {}
    for name in CATEGORIES:
        for c in matching(rf"\p{{{name}}}"):
            categories[c] = f"Category::k{name}"
    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    accents = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    write("unicode_ranges.inc",
          valued("CategoryRange", "kCategories", categories)
          + table("kSpaces", matching(r"\s"))
          + table("kWordCharacters", word_characters())
          + table("kRegexWordCharacters", matching(r"\w"))
          + table("kRegexPunctuation", matching("[[:punct:]]"))
          + table("kRegexAlphabetic", matching("[[:alpha:]]"))
          + table("kPunctuationRanges", others(split_matches(pre_tokenizers.Punctuation("removed"))))
          + table("kNumericRanges", [c for codes in chunks() for c in numeric(codes)])
          + table("kBertDroppedRanges", removed_by(clean))
          + table("kBertAccentRanges", removed_by(accents))
          + table("kMarkRanges", removed_by(normalizers.StripAccents()))
          + valued("GraphemeRange", "kGraphemes", {c: f"Grapheme::k{v}" for c, v in graphemes().items()}))


def numeric(codes):
    """Those of the code points that the Digits pre-tokenizer cuts out."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    pieces = {b for _, (b, e) in digits.pre_tokenize_str("".join(f"a{chr(c)}" for c in codes)) if e == b + 1}
    return [c for k, c in enumerate(codes) if 2 * k + 1 in pieces]


def write_scripts():
    write("unicode_scripts.inc",
          valued("ScriptRange", "kScriptClasses", script_classes())
          + "".join(table(f"k{name}", matching(rf"\p{{{name}}}")) for name in SCRIPTS)
          + array("NamedRanges", "kScripts", (f'{{"{name}", k{name}}}' for name in SCRIPTS)))


def write_mappings():
    nfd, nfkd, nfc = normalizers.NFD(), normalizers.NFKD(), normalizers.NFC()
    canonical, compatible = mapping(nfd), mapping(nfkd)
    for m in (canonical, compatible):
        for c in range(0xAC00, 0xD7A4):
            m.pop(c, None)
    classes = combining_classes(nfd.normalize_str)
    pool, entries = "", []
    for c in sorted(set(canonical) | set(compatible)):
        fields = []
        for m in (canonical, compatible):
            text = m.get(c, "")
            at = pool.find(text) if text else 0
            if at < 0:
                at, pool = len(pool), pool + text
            fields.append(f"{at}, {len(text)}")
        entries.append(f"{{0x{c:X}, {fields[0]}, {fields[1]}}}")
    lower = mapping(normalizers.Lowercase())
    assert all(len(t) <= 2 for t in lower.values())
    write("unicode_mappings.inc",
          array("Decomposition", "kDecompositions", entries)
          + array("char32_t", "kDecompositionPool", (f"0x{ord(c):X}" for c in pool))
          + array("Composition", "kCompositions",
                  (f"{{0x{a:X}, 0x{b:X}, 0x{c:X}}}" for (a, b), c in
                   sorted(compositions(canonical, nfc.normalize_str).items())))
          + valued("ClassRange", "kCombiningClasses", classes)
          + array("LowercaseMapping", "kLowercase",
                  (f"{{0x{c:X}, 0x{ord(t[0]):X}, 0x{ord(t[1]) if len(t) > 1 else 0:X}}}" for c, t in sorted(lower.items()))))


def write_folds():
    """What regular expressions take for the same letter under (?i), one code point for another or for several."""
    def equal(pattern, text):
        pattern = "".join(f"\\x{{{ord(c):X}}}" for c in pattern)
        split = pre_tokenizers.Split(Regex(f"(?i:{pattern})"), "removed", invert=True)
        return [piece for piece, _ in split.pre_tokenize_str(text)] == [text]

    lower = normalizers.Lowercase()
    simple, full = {}, {}
    for c in map(chr, SCALARS):
        folded = c.casefold()
        # Python may not know the newest letters.
        other = folded if len(folded) == 1 and unicodedata.category(c) != "Cn" else lower.normalize_str(c)
        if other != c and len(other) == 1 and equal(other, c):
            simple[c] = other
        if len(folded) > 1 and equal(folded, c):
            full[c] = folded
    assert not set(simple) & set(simple.values())
    write("unicode_folds.inc",
          array("CaseFold", "kCaseFolds", (f"{{0x{ord(a):X}, 0x{ord(b):X}}}" for a, b in simple.items()))
          + array("FullCaseFold", "kFullCaseFolds",
                  (f'{{0x{ord(a):X}, U"' + "".join(f"\\x{ord(c):X}" for c in b) + '"}' for a, b in full.items())))


if __name__ == "__main__":
    write_mappings()
    write_ranges()
    write_scripts()
    write_folds()
