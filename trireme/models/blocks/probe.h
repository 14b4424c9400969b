#pragma once
// A linear probe of a frozen encoder (He et al., masked autoencoders, 2022): its norm, one vector a
// row, each feature standardised over the rows of a micro-batch, then the head's classifier.

#include "trireme/models/blocks/heads.h"

namespace trireme::models {

/// The last links of a chain, as add_head's. The rows' vector is the first place or the mean of all
/// (`head.rows->pool`); statistics are buffers "classifier_norm". Batches become whole ones.
void add_probe(HeadSpec head, nn::ModelDef& def);

}  // namespace trireme::models
