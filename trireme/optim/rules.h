#pragma once
// The update rules, one a file. What each computes is documented here; what a rule is in
// optimizers.h.

#include "trireme/optim/optimizers.h"

namespace trireme::optim {

/// AdamW (Loshchilov and Hutter, 2019), or Adam with L2 regularisation (Kingma and Ba, 2015), where
/// the decay is a part of the gradient.
std::unique_ptr<Optimizer> make_adam(const config::Optim& options, bool decoupled);
/// Gradient descent with momentum, Nesterov's on request.
std::unique_ptr<Optimizer> make_sgd(const config::Optim& options);
/// Lion (Chen et al., 2023): p -= lr * (sign(b1 m + (1 - b1) g) + decay p); m = b2 m + (1 - b2) g.
std::unique_ptr<Optimizer> make_lion(const config::Optim& options);
/// LAMB (You et al., 2020): AdamW's step, decay included, is scaled by |p| / |step| of the whole
/// parameter; by 1 where either is 0.
std::unique_ptr<Optimizer> make_lamb(const config::Optim& options, WholeTensors whole);
/// Adafactor (Shazeer and Stern, 2018) with PyTorch's defaults: the second moment of a matrix is the
/// product of a row's and a column's mean, steps scale with the parameter, lr bounds them.
std::unique_ptr<Optimizer> make_adafactor(const config::Optim& options, WholeTensors whole);
/// Muon (Jordan et al., 2024): the momentum of a matrix, brought close to orthogonal by five
/// Newton-Schulz iterations in the parameter's own precision, times 0.2 sqrt(longer side), which
/// makes lr and decay those of AdamW ("match_rms_adamw" in PyTorch). Parameters that are no
/// matrices, and those of muon_exclude, take AdamW's step.
std::unique_ptr<Optimizer> make_muon(const config::Optim& options, WholeTensors whole);

/// ConfigError unless betas are two numbers in [0, 1) and eps is not negative.
void check_moments(const config::Optim& options);
/// optim.momentum, or `otherwise` where that is null. ConfigError unless it is in [0, 1).
double momentum_of(const config::Optim& options, double otherwise);

std::vector<kernels::Piece> pieces_of(std::span<const Segment> segments);
/// The one dtype of all segments (at least one).
at::ScalarType type_of(std::span<const Segment> segments);

}  // namespace trireme::optim
