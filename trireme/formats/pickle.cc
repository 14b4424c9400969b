#include "trireme/formats/pickle.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/formats/safetensors.h"

namespace trireme::formats {
namespace {

using base::DType;
using base::FormatError;

constexpr std::pair<DType, std::string_view> kStorages[] = {
    {DType::f64, "DoubleStorage"},    {DType::f32, "FloatStorage"}, {DType::f16, "HalfStorage"},
    {DType::bf16, "BFloat16Storage"}, {DType::i64, "LongStorage"},  {DType::i32, "IntStorage"},
    {DType::i16, "ShortStorage"},     {DType::i8, "CharStorage"},   {DType::u8, "ByteStorage"},
    {DType::boolean, "BoolStorage"}};

constexpr std::string_view kRebuildTensor = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view kRebuildParameter = "torch._utils _rebuild_parameter";
constexpr std::string_view kOrderedDict = "collections OrderedDict";

enum class Kind { none, boolean, integer, real, text, tuple, list, map, global, storage, tensor };

/// Values live in one array and refer to each other by index: nothing is nested, so nothing
/// recurses.
struct Value {
  Kind kind = Kind::none;
  int64_t integer = 0;
  double real = 0;
  std::string text = {};           // of a text; "module name" of a global
  std::vector<size_t> items = {};  // of tuple and list; key, value, key, ... of a map
  PickledTensor tensor = {};       // of storage and tensor
};

class Machine {
 public:
  /// `objects`: objects of other classes are maps of their attributes; else they are refused.
  Machine(std::string_view program, const std::string& source, bool objects = false)
      : program_(program), source_(source), objects_(objects) {}

  /// The value that the program leaves.
  size_t run();
  const Value& value(size_t index) const { return values_[index]; }
  [[noreturn]] void refuse(const std::string& why) const {
    throw FormatError(source_, static_cast<int64_t>(at_), why);
  }

 private:
  static constexpr size_t kMark = SIZE_MAX;

  std::string_view take(size_t count) {
    if (count > program_.size() - at_) refuse("the pickle ends early");
    std::string_view bytes = program_.substr(at_, count);
    at_ += count;
    return bytes;
  }
  uint64_t number(size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, take(bytes).data(), bytes);
    return value;
  }
  std::string_view line() {
    size_t end = program_.find('\n', at_);
    if (end == std::string_view::npos) refuse("the pickle ends early");
    std::string_view text = take(end - at_);
    ++at_;
    return text;
  }
  void push(Value value) {
    values_.push_back(std::move(value));
    stack_.push_back(values_.size() - 1);
  }
  void push_integer(int64_t integer, Kind kind = Kind::integer) {
    push({.kind = kind, .integer = integer});
  }
  size_t pop() {
    if (stack_.empty() || stack_.back() == kMark)
      refuse("the pickle takes a value from an empty stack");
    size_t top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Value& top(Kind a, Kind b) {
    if (stack_.empty() || stack_.back() == kMark) refuse("the pickle looks at an empty stack");
    Value& value = values_[stack_.back()];
    if (value.kind != a && value.kind != b) refuse("the pickle adds items to what takes none");
    return value;
  }
  std::vector<size_t> pop_to_mark() {
    auto mark = std::find(stack_.rbegin(), stack_.rend(), kMark);
    if (mark == stack_.rend()) refuse("the pickle misses a mark");
    std::vector<size_t> items(mark.base(), stack_.end());
    stack_.erase(mark.base() - 1, stack_.end());
    return items;
  }
  void push_tuple(std::vector<size_t> items) {
    push({.kind = Kind::tuple, .items = std::move(items)});
  }
  void push_last(size_t count) {
    std::vector<size_t> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push_tuple(std::move(items));
  }
  void remember(uint64_t key) {
    if (stack_.empty() || stack_.back() == kMark) refuse("the pickle remembers nothing");
    memo_[key] = stack_.back();
  }
  void recall(uint64_t key) {
    auto found = memo_.find(key);
    if (found == memo_.end()) refuse("the pickle recalls what it never remembered");
    stack_.push_back(found->second);
  }
  void import(std::string_view module, std::string_view name);
  void persistent();
  void reduce();
  void long_integer(size_t bytes);
  void build();
  bool other(unsigned char operation);
  const Value& item(const Value& tuple, size_t index, Kind kind) const {
    const Value& value = values_[tuple.items[index]];
    if (value.kind != kind) refuse("a tensor's description has a part of the wrong type");
    return value;
  }
  layout::Shape integers(const Value& tuple) const {
    layout::Shape out;
    for (size_t index : tuple.items) {
      if (values_[index].kind != Kind::integer)
        refuse("a tensor's shape or stride is not made of integers");
      out.push_back(values_[index].integer);
    }
    return out;
  }

  std::string_view program_;
  const std::string& source_;
  bool objects_;
  size_t at_ = 0;
  std::vector<Value> values_;
  std::vector<size_t> stack_;
  std::map<uint64_t, size_t> memo_;
};

void Machine::import(std::string_view module, std::string_view name) {
  std::string both = fmt::format("{} {}", module, name);
  bool known = both == kRebuildTensor || both == kRebuildParameter || both == kOrderedDict;
  for (const auto& [dtype, storage] : kStorages)
    known = known || (module == "torch" && name == storage);
  if (!known && !objects_) {
    refuse(
        fmt::format("the pickle asks for {}.{}, which makes no tensor; such a file is refused, "
                    "since loading it "
                    "elsewhere would run code",
                    module, name));
  }
  push({.kind = Kind::global, .text = both});
}

void Machine::persistent() {
  const Value id = values_[pop()];
  if (id.kind != Kind::tuple || id.items.size() != 5 || item(id, 0, Kind::text).text != "storage") {
    refuse("a persistent id is no storage");
  }
  const std::string& type = item(id, 1, Kind::global).text;
  Value storage{.kind = Kind::storage};
  bool known = false;
  for (const auto& [dtype, name] : kStorages) {
    if (type == fmt::format("torch {}", name)) storage.tensor.dtype = dtype, known = true;
  }
  if (!known) refuse(fmt::format("{} is no type of storage", type));
  storage.tensor.storage = item(id, 2, Kind::text).text;
  storage.tensor.storage_elements = item(id, 4, Kind::integer).integer;
  push(std::move(storage));
}

void Machine::reduce() {
  const Value arguments = values_[pop()], function = values_[pop()];
  const bool known = function.text == kOrderedDict || function.text == kRebuildParameter ||
                     function.text == kRebuildTensor;
  if (objects_ && !known) return push({.kind = Kind::map});
  if (function.kind != Kind::global || arguments.kind != Kind::tuple)
    refuse("the pickle calls what is no function");
  if (function.text == kOrderedDict && arguments.items.empty()) return push({.kind = Kind::map});
  if (function.text == kRebuildParameter && !arguments.items.empty()) {
    item(arguments, 0, Kind::tensor);
    return stack_.push_back(arguments.items[0]);
  }
  if (function.text != kRebuildTensor || arguments.items.size() < 6) {
    refuse(fmt::format("{} is not called as PyTorch does", function.text));
  }
  Value tensor{.kind = Kind::tensor, .tensor = item(arguments, 0, Kind::storage).tensor};
  tensor.tensor.offset = item(arguments, 1, Kind::integer).integer;
  tensor.tensor.shape = integers(item(arguments, 2, Kind::tuple));
  tensor.tensor.stride = integers(item(arguments, 3, Kind::tuple));
  push(std::move(tensor));
}

void Machine::build() {
  const Value state = values_[pop()];
  if (!objects_) {  // attributes of the map (its _metadata), which hold no tensor
    top(Kind::map, Kind::map);
    return;
  }
  if (stack_.empty() || stack_.back() == kMark) refuse("the pickle looks at an empty stack");
  Value& object = values_[stack_.back()];
  if (object.kind == Kind::map && state.kind == Kind::map)
    object.items.insert(object.items.end(), state.items.begin(), state.items.end());
}

/// What objects need beside maps of tensors. Bytes are not kept.
bool Machine::other(unsigned char operation) {
  switch (operation) {
    case 'C':
      take(number(1)), push({});
      return true;  // SHORT_BINBYTES
    case 'B':
      take(number(4)), push({});
      return true;  // BINBYTES
    case 0x8e:
      take(number(8)), push({});
      return true;  // BINBYTES8
    case 'U':
      push({.kind = Kind::text, .text = std::string(take(number(1)))});
      return true;
    case 'T':
      push({.kind = Kind::text, .text = std::string(take(number(4)))});
      return true;
    case 0x8d:
      push({.kind = Kind::text, .text = std::string(take(number(8)))});
      return true;
    case 0x81:  // NEWOBJ
      pop(), pop(), push({.kind = Kind::map});
      return true;
    case 0x92:  // NEWOBJ_EX
      pop(), pop(), pop(), push({.kind = Kind::map});
      return true;
    case 0x8f:
      push({.kind = Kind::list});
      return true;  // EMPTY_SET
    case 0x90:      // ADDITEMS
      pop_to_mark();
      return true;
    case 0x91:  // FROZENSET
      pop_to_mark(), push({.kind = Kind::list});
      return true;
    case '2':  // DUP
      if (stack_.empty()) refuse("the pickle looks at an empty stack");
      stack_.push_back(stack_.back());
      return true;
    case '1':
      pop_to_mark();
      return true;  // POP_MARK
    default:
      return false;
  }
}

void Machine::long_integer(size_t bytes) {
  if (bytes > 8 && objects_) {
    take(bytes);
    return push({});
  }
  if (bytes > 8) refuse("an integer of more than 64 bits");
  uint64_t value = number(bytes);
  // The number is two's complement in as many bytes as it needs.
  if (bytes > 0 && bytes < 8 && (value >> (8 * bytes - 1)) != 0)
    value |= ~uint64_t{0} << (8 * bytes);
  push_integer(static_cast<int64_t>(value));
}

size_t Machine::run() {
  while (true) {
    switch (static_cast<unsigned char>(take(1)[0])) {
      case 0x80:  // PROTO
        if (number(1) > 5) refuse("a pickle of an unknown protocol");
        break;
      case 0x95:
        take(8);
        break;  // FRAME
      case '.':
        return pop();  // STOP
      case '(':
        stack_.push_back(kMark);
        break;
      case '0':
        pop();
        break;  // POP
      case 'N':
        push({});
        break;
      case 0x88:
        push_integer(1, Kind::boolean);
        break;
      case 0x89:
        push_integer(0, Kind::boolean);
        break;
      case 'K':
        push_integer(static_cast<int64_t>(number(1)));
        break;
      case 'M':
        push_integer(static_cast<int64_t>(number(2)));
        break;
      case 'J':
        push_integer(static_cast<int32_t>(number(4)));
        break;
      case 0x8a:
        long_integer(number(1));
        break;  // LONG1
      case 'G':
        push({.kind = Kind::real, .real = std::bit_cast<double>(__builtin_bswap64(number(8)))});
        break;
      case 'X':
        push({.kind = Kind::text, .text = std::string(take(number(4)))});
        break;
      case 0x8c:
        push({.kind = Kind::text, .text = std::string(take(number(1)))});
        break;
      case ')':
        push_tuple({});
        break;
      case ']':
        push({.kind = Kind::list});
        break;
      case '}':
        push({.kind = Kind::map});
        break;
      case 't':
        push_tuple(pop_to_mark());
        break;
      case 0x85:
        push_last(1);
        break;
      case 0x86:
        push_last(2);
        break;
      case 0x87:
        push_last(3);
        break;
      case 'q':
        remember(number(1));
        break;
      case 'r':
        remember(number(4));
        break;
      case 0x94:
        remember(memo_.size());
        break;  // MEMOIZE
      case 'h':
        recall(number(1));
        break;
      case 'j':
        recall(number(4));
        break;
      case 'c': {  // GLOBAL
        std::string_view module = line();
        import(module, line());
        break;
      }
      case 0x93: {  // STACK_GLOBAL
        const Value name = values_[pop()], module = values_[pop()];
        if (name.kind != Kind::text || module.kind != Kind::text)
          refuse("the pickle imports what is no name");
        import(module.text, name.text);
        break;
      }
      case 'Q':
        persistent();
        break;
      case 'R':
        reduce();
        break;
      case 'a':
      case 'e': {
        std::vector<size_t> items =
            program_[at_ - 1] == 'a' ? std::vector<size_t>{pop()} : pop_to_mark();
        Value& list = top(Kind::list, Kind::list);
        list.items.insert(list.items.end(), items.begin(), items.end());
        break;
      }
      case 's':
      case 'u': {
        std::vector<size_t> items;
        if (program_[at_ - 1] == 's') {
          size_t value = pop();
          items = {pop(), value};
        } else {
          items = pop_to_mark();
        }
        if (items.size() % 2) refuse("a map with a key that has no value");
        Value& map = top(Kind::map, Kind::map);
        map.items.insert(map.items.end(), items.begin(), items.end());
        break;
      }
      case 'b':
        build();
        break;
      default:
        if (objects_ && other(static_cast<unsigned char>(program_[at_ - 1]))) break;
        refuse(fmt::format("the pickle has an operation (0x{:02x}) that no map of tensors needs",
                           static_cast<unsigned char>(program_[at_ - 1])));
    }
  }
}

}  // namespace

std::map<std::string, PickledTensor> read_state_dict(std::string_view pickle,
                                                     const std::string& source) {
  Machine machine(pickle, source);
  const Value& root = machine.value(machine.run());
  if (root.kind != Kind::map) machine.refuse("the pickle is no map of names to tensors");
  std::map<std::string, PickledTensor> tensors;
  for (size_t i = 0; i < root.items.size(); i += 2) {
    const Value &name = machine.value(root.items[i]), &tensor = machine.value(root.items[i + 1]);
    if (name.kind != Kind::text || tensor.kind != Kind::tensor) {
      machine.refuse(fmt::format("entry {} (\"{}\") is no named tensor", i / 2, name.text));
    }
    if (!tensors.emplace(name.text, tensor.tensor).second)
      machine.refuse(fmt::format("\"{}\" appears twice", name.text));
  }
  return tensors;
}

PickledTree read_tree(std::string_view pickle, const std::string& source) {
  constexpr size_t kMaps = 1 << 20;  // a map may hold itself
  Machine machine(pickle, source, true);
  const size_t root = machine.run();
  if (machine.value(root).kind != Kind::map) machine.refuse("the pickle is no map");
  PickledTree tree{.tensors = {}, .values = base::Json::object()};
  struct Place {
    size_t map;
    std::string path;
  };
  std::vector<Place> open{{root, ""}};
  for (size_t seen = 0; !open.empty(); ++seen) {
    const Place place = std::move(open.back());
    open.pop_back();
    if (seen == kMaps || place.path.size() > 1000) machine.refuse("maps in maps without an end");
    const std::vector<size_t>& items = machine.value(place.map).items;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      const Value &key = machine.value(items[i]), &value = machine.value(items[i + 1]);
      if (key.kind != Kind::text && key.kind != Kind::integer) continue;
      const std::string name = key.kind == Kind::text ? key.text : std::to_string(key.integer);
      const std::string path = place.path.empty() ? name : place.path + "." + name;
      if (value.kind == Kind::map) open.push_back({items[i + 1], path});
      if (value.kind == Kind::tensor) tree.tensors.insert_or_assign(path, value.tensor);
      if (value.kind == Kind::integer) tree.values[path] = value.integer;
      if (value.kind == Kind::boolean) tree.values[path] = value.integer != 0;
      if (value.kind == Kind::real) tree.values[path] = value.real;
      if (value.kind == Kind::text) tree.values[path] = value.text;
    }
  }
  return tree;
}

std::string write_state_dict(const std::vector<TensorEntry>& entries) {
  std::string out = "\x80\x02}(";
  auto append = [&](uint64_t value, int bytes) {
    out.append(reinterpret_cast<const char*>(&value), static_cast<size_t>(bytes));
  };
  auto text = [&](std::string_view value) {
    out += 'X';
    append(value.size(), 4);
    out += value;
  };
  auto integer = [&](int64_t value) {  // never negative here
    if (value < 256) {
      out += 'K', append(static_cast<uint64_t>(value), 1);
    } else if (value <= INT32_MAX) {
      out += 'J', append(static_cast<uint64_t>(value), 4);
    } else {
      out += '\x8a', append(8, 1), append(static_cast<uint64_t>(value), 8);
    }
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    const TensorEntry& entry = entries[i];
    auto storage = std::find_if(std::begin(kStorages), std::end(kStorages),
                                [&](const auto& s) { return s.first == entry.dtype; });
    base::check(storage != std::end(kStorages), "{} has no storage type",
                base::name_of(entry.dtype));
    text(entry.name);
    out += "ctorch._utils\n_rebuild_tensor_v2\n((";
    text("storage");
    out += fmt::format("ctorch\n{}\n", storage->second);
    text(std::to_string(i));
    text("cpu");
    integer(layout::element_count(entry.shape));
    out += "tQK";
    out += '\0';
    out += '(';
    for (int64_t size : entry.shape) integer(size);
    out += "t(";
    layout::Shape stride(entry.shape.size(), 1);
    for (size_t d = stride.size(); d-- > 1;)
      stride[d - 1] = stride[d] * std::max<int64_t>(entry.shape[d], 1);
    for (int64_t step : stride) integer(step);
    out +=
        "t\x89"
        "ccollections\nOrderedDict\n)RtR";
  }
  return out + "u.";
}

}  // namespace trireme::formats
