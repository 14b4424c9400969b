#pragma once
// Distillation (Touvron et al., DeiT, 2021): a second token of an image's stream learns what a
// teacher says of the image, the first one its label. The teacher is a whole model of images that
// goes along on the last stage, as buffers under "teacher."; it sees what the student sees and is
// never trained.

#include <memory>
#include <string>

#include "trireme/models/blocks/heads.h"

namespace trireme::models {

struct DistillationSpec {
  int64_t hidden = 0, labels = 2;
  std::string norm = "";  // full name; behind the last block
  Norm norm_kind = {};
  double deviation = 0.02;
  Positions positions = {};
  bool soft = false;       // the teacher's shares of the classes are learnt, else the class that it
                           // takes for the likeliest
  double alpha = 0.5;      // share of the teacher in the loss
  double temperature = 1;  // of soft shares
  std::shared_ptr<const nn::ModelDef> teacher = {};  // none: the second token learns the label too
};

/// Where a teacher's parameters stand.
inline constexpr const char* kTeacher = "teacher";

/// The last link of a chain and, into `def`, its loss, a sum over images: both tokens' scores
/// ("first", "second"), their mean ("scores"), and the teacher's ("teacher").
void add_distillation(const DistillationSpec& spec, nn::ModelDef& def);

}  // namespace trireme::models
