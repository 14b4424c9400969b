#pragma once
// Heads: what turns the last hidden states of any chain into scores and a loss, as data. The configuration's key `head`, or
// the name in `architectures`, picks one; its loss says what a batch must hold:
//
//   masked_lm                labels [rows, seq]
//   pretraining              labels [rows, seq] and next_sentence_label [rows] (ALBERT: sentence_order_label);
//                            ELECTRA's: labels [rows, seq] of 0 and 1
//   sequence_classification  labels [rows], or [rows, labels] where problem_type is multi_label_classification
//   token_classification     labels [rows, seq]
//   multiple_choice          labels [rows / choices]; choices follow one another
//   question_answering       start_positions [rows], end_positions [rows]
//   image_classification     labels [rows], or shares of the classes [rows, labels]
//   seq2seq                  labels [rows, seq] of the decoder's tokens
//   causal_lm                labels [rows, seq], of each token the next
//   distillation             labels [rows], or shares of the classes; distillation.h
//   embedding                nothing: one vector a row comes out

#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/models/blocks/norm.h"

namespace trireme::models {

enum class HeadKind : uint8_t {
  masked_lm,
  pretraining,
  sequence_classification,
  token_classification,
  multiple_choice,
  question_answering,
  embedding,
  image_classification,
  seq2seq,
  causal_lm,
  distillation,
};

/// Which positions a residual stream has.
struct Positions {
  int64_t fixed = 0;    // an image's patches and tokens; 0: as many as the batch has
  bool source = false;  // those of the encoder's input
  int64_t of(const nn::BatchShape& shape) const {
    return fixed > 0 ? fixed : source ? shape.source_seq : shape.seq;
  }
};

/// Of a stream that may be split over tp: all `context.seq` positions on every rank, and back.
at::Tensor whole_stream(const nn::Builder& b, const at::Tensor& x, const nn::Context& context);
at::Tensor own_stream(const nn::Builder& b, const at::Tensor& x, const nn::Context& context);

/// Scores of the vocabulary for each token, split over tp ("logits"): dense, activation, norm, then
/// the table's rows. Full names of modules.
struct VocabScores {
  std::string table = "";
  int64_t vocab = 0, features = 0;  // of the table's rows
  std::string bias = "";            // full name of the parameter; empty: none
  bool fixed_bias = false;          // a buffer [1, vocab]
  std::string dense = "", activation = "", norm = "";
  Norm norm_kind = {};
  double scale = 1;  // of the hidden states
  double cap = 0;    // logits are cap * tanh(logits / cap); 0: none
  double deviation = 0.02;
};

/// Which of a row's vectors speaks for it: the first, the mean of those that are no padding, that of the last token `end`, of
/// the last token that is not `end`, of the last one that the batch's attention_mask counts.
enum class RowPool : uint8_t { first, mean, last_end, before_end, last };

/// Scores of classes for each row, whole on every rank: pool, dropout, dense, activation, dropout,
/// out.
struct RowScores {
  RowPool pool = RowPool::first;
  int64_t end = -1;
  double dropout_first = 0;
  std::string dense = "", activation = "";
  double dropout = 0;
  std::string out = "";
  bool bias = true;  // of `out`
  int64_t labels = 2;
  std::string name = "scores";  // of the output
};

/// Scores of classes for each token, whole on every rank ("scores"): dense, activation, dropout,
/// out.
struct TokenScores {
  std::string dense = "", activation = "";
  double dropout = 0;
  std::string out = "";
  int64_t labels = 2;
};

/// One vector for each row, of length 1 if normalised.
struct RowVector {
  RowPool pool = RowPool::mean;
  bool normalize = false;
};

struct HeadSpec {
  HeadKind kind = HeadKind::masked_lm;
  int64_t hidden = 0;
  std::string norm = "";  // behind the last block; empty: none
  Norm norm_kind = {};
  double norm_dropout = 0;  // behind that norm
  std::string projection = "";  // behind it, without a bias; empty: none
  int64_t projected = 0;        // features that it makes
  std::optional<VocabScores> vocab = {};
  std::optional<RowScores> rows = {};
  std::optional<TokenScores> tokens = {};
  std::optional<RowVector> vector = {};
  double deviation = 0.02;
  std::string second_label = "next_sentence_label";  // field of a pretraining head's row labels
  std::string problem = "";  // Hugging Face's problem_type, of sequence_classification
  Positions positions = {};

  /// Of what the scores are made of.
  int64_t features() const { return projection.empty() ? hidden : projected; }
};

/// What the heads of one family look like; a kind that it has not is left out.
struct FamilyHeads {
  VocabScores vocab = {};  // of every head that scores words
  RowScores relation = {}, classes = {}, choices = {};  // of a pretraining head's rows, of classes, of choices
  double token_dropout = 0, answer_dropout = 0;
  std::string token_out = "classifier";
  std::optional<TokenScores> pretraining = {};  // in place of words and rows
};
/// Fills in what head.kind asks for. `labels`: of classes. `tree`: of an embedding's pooling.
void add_scores(HeadSpec& head, const FamilyHeads& family, int64_t labels, const base::Json& tree);

/// The last link of a chain and, into `def`, its loss and what counts.
void add_head(const HeadSpec& spec, nn::ModelDef& def);

/// `head`, else what `architectures` names, else `otherwise`, which old classes call LMHeadModel. ConfigError names the heads
/// that the family has.
HeadKind head_of(const base::Json& tree, const std::string& family,
                 const std::vector<HeadKind>& has, HeadKind otherwise);
std::string name_of(HeadKind kind);
/// What they are called in a sentence: "causal LM, classes of rows, embedding".
std::string in_words(const std::vector<HeadKind>& heads);
/// "ForMaskedLM", ...; what follows the family's name in `architectures`.
std::string suffix_of(HeadKind kind);

/// `pooling` (mean, cls or last) and `normalize` of an embedding head. ConfigError for another value.
RowVector vector_of(const base::Json& tree);
/// The classes of a classification: `num_labels`, else the number of `id2label`, else `otherwise`.
int64_t labels_of(const base::Json& tree, int64_t otherwise = 2);
/// For `resolve`, on what the reader made: the class in `architectures`, and the labels where Hugging Face would not know
/// their number.
void write_head(base::Json& tree, const std::string& family_name, HeadKind kind, int64_t labels);

}  // namespace trireme::models
