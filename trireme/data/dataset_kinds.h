#pragma once
// The kinds of Examples that come with trireme; docs/data.md has their options and fields. Each
// function throws ConfigError or FormatError for what it cannot serve, naming file and place.

#include <memory>
#include <string>

#include "trireme/data/examples.h"

namespace trireme::data {

/// An indexed dataset with a sequence a sentence. Fields: input_ids, token_type_ids,
/// attention_mask, labels, next_sentence_label.
std::shared_ptr<const Examples> open_bert(const std::string& path, const base::Json& options,
                                          const SampleOptions& run);
/// An indexed dataset. Fields: input_ids, attention_mask, labels.
std::shared_ptr<const Examples> open_mlm(const std::string& path, const base::Json& options,
                                         const SampleOptions& run);
/// An indexed dataset. Fields: input_ids, attention_mask, decoder_input_ids,
/// decoder_attention_mask, labels. Spans as in Raffel et al., "Exploring the limits of transfer
/// learning with a unified text-to-text transformer", 2020.
std::shared_ptr<const Examples> open_t5(const std::string& path, const base::Json& options,
                                        const SampleOptions& run);
/// An indexed dataset. Fields: input_ids, labels, prefix_mask (1: sees all of the prefix).
std::shared_ptr<const Examples> open_prefix_lm(const std::string& path, const base::Json& options,
                                               const SampleOptions& run);
/// JSON lines with a prompt and its completion. Fields: input_ids, attention_mask, labels (shifted,
/// as those of `tokens`; the prompt's count for nothing).
std::shared_ptr<const Examples> open_finetune(const std::string& path, const base::Json& options,
                                              const SampleOptions& run);
/// A table (.csv, .tsv, .jsonl) of texts or pairs of texts with a class or a number. Fields:
/// input_ids, token_type_ids, attention_mask, labels.
std::shared_ptr<const Examples> open_classification(const std::string& path,
                                                    const base::Json& options,
                                                    const SampleOptions& run);
/// Questions on texts, as SQuAD's JSON or JSON lines. Fields: input_ids, token_type_ids,
/// attention_mask, start_positions, end_positions.
std::shared_ptr<const Examples> open_question_answering(const std::string& path,
                                                        const base::Json& options,
                                                        const SampleOptions& run);
/// Images with labels: MNIST's and CIFAR's files, .npy arrays, folders of PNG and JPEG files.
/// Fields: pixel_values (channels, height, width), labels; with captions input_ids, attention_mask.
std::shared_ptr<const Examples> open_images(const std::string& path, const base::Json& options,
                                            const SampleOptions& run);
/// Nothing but numbers from a recurrence, for trials: the path is not looked at. Fields: input_ids,
/// labels.
std::shared_ptr<const Examples> open_synthetic(const std::string& path, const base::Json& options,
                                               const SampleOptions& run);

}  // namespace trireme::data
