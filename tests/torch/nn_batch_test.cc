#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/nn/state.h"

namespace trireme::nn {
namespace {

data::Field ids(const char* name, std::vector<int64_t> shape, std::vector<int64_t> values) {
  return {.name = name, .shape = std::move(shape), .values = std::move(values)};
}

TEST(ToTensors, KeepsNamesShapesAndTypes) {
  data::Batch batch;
  batch.fields.push_back({.name = "pixel_values",
                          .shape = {2, 1, 1, 2},
                          .reals = {0.5F, 1, 2, 3},
                          .dtype = base::DType::f32});
  batch.fields.push_back(ids("labels", {2}, {7, 8}));
  batch.samples = {4, 5};
  const Batch tensors = to_tensors(batch);
  EXPECT_EQ(tensors.tensors.at("pixel_values").scalar_type(), at::kFloat);
  EXPECT_EQ(tensors.tensors.at("pixel_values").sizes(), (std::vector<int64_t>{2, 1, 1, 2}));
  EXPECT_EQ(tensors.tensors.at("pixel_values")[0][0][0][0].item<float>(), 0.5F);
  EXPECT_EQ(tensors.tensors.at("labels").scalar_type(), at::kLong);
  EXPECT_EQ(tensors.rows, 2);
  EXPECT_EQ(tensors.seq, 1) << "images have no positions";
  EXPECT_EQ(tensors.samples[1].item<int64_t>(), 5);
}

TEST(ToTensors, LengthsAreThoseOfDecoderAndEncoder) {
  data::Batch batch;
  batch.fields.push_back(ids("input_ids", {1, 3}, {1, 2, 3}));
  batch.fields.push_back(ids("labels", {1, 2}, {4, 5}));
  batch.samples = {0};
  EXPECT_EQ(to_tensors(batch).seq, 3);
  EXPECT_EQ(to_tensors(batch).source_seq, 0);
  batch.fields.push_back(ids("decoder_input_ids", {1, 2}, {0, 4}));
  EXPECT_EQ(to_tensors(batch).seq, 2);
  EXPECT_EQ(to_tensors(batch).source_seq, 3);
  data::Batch empty;
  empty.fields.push_back(ids("input_ids", {0, 9}, {}));
  EXPECT_EQ(to_tensors(empty).seq, 9);
  EXPECT_EQ(to_tensors(empty).rows, 0);
}

TEST(ToTensors, WhatWasNotReadHasAShapeAndIsNotThere) {
  data::Batch batch;
  batch.fields.push_back({.name = "input_ids", .shape = {2, 3}, .read = false});
  batch.fields.push_back(ids("labels", {2}, {1, 0}));
  batch.samples = {0, 1};
  const Batch tensors = to_tensors(batch);
  EXPECT_EQ(tensors.seq, 3);
  EXPECT_FALSE(tensors.tensors.has("input_ids"));
  EXPECT_THROW(tensors.tensors.at("input_ids"), base::InternalError);
  EXPECT_TRUE(tensors.tensors.has("labels"));
}

}  // namespace
}  // namespace trireme::nn
