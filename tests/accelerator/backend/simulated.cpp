// A simulated accelerator: torch's PrivateUse1 backend on host memory, for tests without a GPU.
//
// What is like a real accelerator: two devices; autograd runs their backward in threads of its own, one a device; a random
// generator for each device; autocast and GradScaler; an allocator with statistics and a limit (torch.OutOfMemoryError);
// "all tensors on the same device" is checked; an index out of range is no exception but marks the device as lost, and the
// error is raised at the next call that synchronises (torch.AcceleratorError), and by every call from then on.
// What is not: there are no streams, and every op runs at once, by the CPU's own kernel on the device's own memory. So values
// are bitwise the CPU's, which is what the tests compare.
//
// The backend counts what costs time on a real device: copies to the host, reads of one element, further synchronisations.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace {

using at::Tensor;
using c10::IValue;
constexpr auto kSim = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;
const c10::DispatchKeySet kSimKeys(c10::DispatchKey::PrivateUse1);

// -- what is counted --------------------------------------------------------------------------------------------------------

std::atomic<int64_t> to_host{0}, scalar_reads{0}, synchronisations{0}, ops{0};

// -- a device that is lost ----------------------------------------------------------------------------------------------------

enum Health { kWell, kPending, kReported };
std::atomic<int> health{kWell};
std::atomic<bool> check_indices{true};
std::mutex planted_lock;
std::string planted_op;
int planted_calls = 0;

[[noreturn]] void raise_lost() {
  health = kReported;
  throw c10::AcceleratorError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 719,
      "SIM error: a kernel failed on the device\nSIM kernel errors might be asynchronously reported at some other API call.");
}
void synchronising() {
  if (health != kWell) raise_lost();
}
void launching() {
  ops++;
  if (health == kReported) raise_lost();
}

// -- memory -------------------------------------------------------------------------------------------------------------------

struct Memory {
  std::mutex lock;
  int64_t current = 0, peak = 0, allocated = 0, freed = 0, limit = int64_t(1) << 40;
};
Memory memory[kDevices];
thread_local int current_device = 0;

std::string mib(int64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f MiB", double(bytes) / (1 << 20));
  return text;
}
void account(int device, int64_t bytes) {
  Memory& of = memory[device];
  std::lock_guard<std::mutex> guard(of.lock);
  if (bytes > 0 && of.current + bytes > of.limit) {
    const std::string text = c10::str(
        "SIM out of memory. Tried to allocate ", mib(bytes), ". GPU ", device, " has a total capacity of ", mib(of.limit), " of which ",
        mib(of.limit - of.current), " is free.");
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
  }
  of.current += bytes;
  of.peak = std::max(of.peak, of.current);
  (bytes > 0 ? of.allocated : of.freed) += std::abs(bytes);
}

struct Block {  // device memory: its own, or that of a CPU result which was taken over as it is
  int device;
  int64_t bytes;
  c10::DataPtr data;
};
void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  account(block->device, -block->bytes);
  delete block;
}
c10::DataPtr device_pointer(int device, int64_t bytes, c10::DataPtr&& data) {
  account(device, bytes);
  void* at = data.get();
  return {at, new Block{device, bytes, std::move(data)}, &free_block, c10::Device(kSim, static_cast<c10::DeviceIndex>(device))};
}

struct SimAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    return device_pointer(current_device, static_cast<int64_t>(bytes), c10::GetAllocator(c10::kCPU)->allocate(bytes));
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    Memory& of = memory[device];
    std::lock_guard<std::mutex> guard(of.lock);
    auto& all = stats.allocated_bytes[0];
    all.current = of.current, all.peak = of.peak, all.allocated = of.allocated, all.freed = of.freed;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { memory[device].allocated = memory[device].freed = 0; }
  void resetPeakStats(c10::DeviceIndex device) override { memory[device].peak = memory[device].current; }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return {memory[device].limit - memory[device].current, memory[device].limit};
  }
};
SimAllocator allocator;
REGISTER_ALLOCATOR(kSim, &allocator);

// -- devices, streams (there is one), generators --------------------------------------------------------------------------------

int index_of(c10::Device device) { return device.index() < 0 ? current_device : device.index(); }

struct SimGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSim; }
  c10::Device device() const { return {kSim, static_cast<c10::DeviceIndex>(current_device)}; }
  c10::Device exchangeDevice(c10::Device to) const override {
    auto old = device();
    setDevice(to);
    return old;
  }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device to) const override {
    TORCH_CHECK(to.index() < kDevices, "SIM error: invalid device ordinal");
    current_device = index_of(to);
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override { current_device = index_of(to); }
  c10::Stream getStream(c10::Device d) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getDefaultStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return c10::Stream(c10::Stream::DEFAULT, s.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { synchronisations++, synchronising(); }
  void synchronizeEvent(void*) const override { synchronisations++, synchronising(); }
  void synchronizeDevice(c10::DeviceIndex) const override { synchronisations++, synchronising(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, SimGuard);

at::Generator& generator(int device) {
  static at::Generator all[kDevices] = {at::detail::createCPUGenerator(), at::detail::createCPUGenerator()};
  return all[device];
}
std::atomic<bool> shares_host_generator{false}, without_float64{false};
void check_dtype(at::ScalarType dtype) {
  TORCH_CHECK_TYPE(!(without_float64 && dtype == at::kDouble), "Cannot convert a SIM Tensor to float64 dtype as the SIM framework doesn't support float64.");
}

struct SimHooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto old = getCurrentDevice();
    current_device = device;
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return generator(device < 0 ? current_device : device); }
  at::Device getDeviceFromPtr(void*) const override { return {kSim, 0}; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
};

// The CPU's kernels draw from the CPU's generator: for the time of one op it holds the device's state.
struct DrawsFromDevice {
  explicit DrawsFromDevice(int device) : own(generator(device)), host(at::detail::getDefaultCPUGenerator()) {
    std::lock_guard<std::mutex> guard(host.mutex());
    kept = host.get_state();
    host.set_state(own.get_state());
  }
  ~DrawsFromDevice() {
    std::lock_guard<std::mutex> guard(host.mutex());
    own.set_state(host.get_state());
    host.set_state(kept);
  }
  at::Generator own, host;
  Tensor kept;
};

// -- tensors: a CPU tensor on the device's memory, and back ------------------------------------------------------------------------

struct BelowEverything {  // no mode, autograd or autocast sees what a kernel does inside
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard python{c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::Functionalize})};
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
};

Tensor tensor_on(const c10::Storage& storage, c10::DispatchKeySet keys, const Tensor& like) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}
bool is_sim(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kSim; }

struct QuietResizing final : c10::WarningHandler {  // an out= of torch's own, made for a device without a functional kernel
  void process(const c10::Warning& warning) override {
    if (warning.msg().rfind("An output with one or more elements was resized", 0) != 0) outer->process(warning);
  }
  c10::WarningHandler* outer = c10::WarningUtils::get_warning_handler();
};

class Translation {  // of one call
 public:
  int device = -1;
  bool host_arguments = false;

  Tensor in(const Tensor& tensor) {
    if (!is_sim(tensor)) {
      host_arguments |= tensor.defined() && tensor.dim() > 0;
      return tensor;
    }
    const int at = tensor.device().index();
    two_devices |= device >= 0 && device != at;
    other = two_devices && other < 0 ? at : other;
    device = device < 0 ? at : device;
    auto* impl = tensor.storage().unsafeGetStorageImpl();
    auto found = aliases.find(impl);
    if (found == aliases.end()) {
      auto storage = c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(),
          c10::DataPtr(tensor.storage().mutable_data(), c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU), /*resizable=*/true);
      found = aliases.emplace(impl, storage).first;
      owners.emplace(storage.get(), tensor.storage());
    }
    return tensor_on(c10::Storage(found->second), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor);
  }

  void check_devices(const c10::OperatorHandle& op) const {
    static const std::unordered_set<std::string> tolerant{"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
                                                          "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_pack_padded_sequence"};
    const auto& name = op.schema().name();
    if (tolerant.count(name) > 0 || name.rfind("aten::_foreach", 0) == 0) return;
    if (two_devices || (host_arguments && device >= 0))
      throw c10::Error(
          {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
          c10::str("Expected all tensors to be on the same device, but found at least two devices, sim:", device, " and ",
                   two_devices ? c10::str("sim:", other) : std::string("cpu"), "!"));
  }

  // A result of the CPU's kernel as a tensor of the device: a view of an argument's memory, or memory taken over.
  Tensor out(const Tensor& result) {
    if (!result.defined() || !result.is_cpu() || device < 0) return result;
    check_dtype(result.scalar_type());
    auto* impl = result.storage().unsafeGetStorageImpl();
    auto found = owners.find(impl);
    if (found == owners.end()) {
      c10::Storage taken = result.storage();
      const auto bytes = static_cast<int64_t>(taken.nbytes());
      c10::DataPtr data(taken.mutable_data(), new c10::Storage(taken), [](void* at) { delete static_cast<c10::Storage*>(at); }, c10::kCPU);
      auto made = c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), taken.nbytes(), device_pointer(device, bytes, std::move(data)), &allocator, true);
      found = owners.emplace(impl, c10::Storage(made)).first;
    }
    return tensor_on(found->second, kSimKeys, result);
  }

  // An argument that the kernel wrote to: it may have another shape, and its memory may have grown.
  void written(const Tensor& argument, const Tensor& alias) {
    if (!is_sim(argument)) return;
    auto* now = alias.storage().unsafeGetStorageImpl();
    if (now->data() != argument.storage().data() || now->nbytes() != argument.storage().nbytes()) {
      const int at = argument.device().index();
      const auto bytes = static_cast<int64_t>(now->nbytes());
      c10::DataPtr data = now->set_data_ptr(c10::DataPtr(now->mutable_data(), c10::Device(c10::kCPU)));
      argument.storage().set_data_ptr_noswap(device_pointer(at, bytes, std::move(data)));
      argument.storage().set_nbytes(bytes);
    }
    argument.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  }

 private:
  bool two_devices = false;
  int other = -1;
  std::unordered_map<c10::StorageImpl*, c10::intrusive_ptr<c10::StorageImpl>> aliases;
  std::unordered_map<c10::StorageImpl*, c10::Storage> owners;
};

// -- indices that a device's kernel would assert on -----------------------------------------------------------------------------

Tensor checked(const Tensor& index, int64_t size, bool from_the_end, std::optional<int64_t> ignored) {
  if (!index.defined() || index.numel() == 0 || (index.scalar_type() != at::kLong && index.scalar_type() != at::kInt)) return index;
  Tensor bad = index.ge(size).logical_or(index.lt(from_the_end ? -size : 0));
  if (ignored) bad = bad.logical_and(index.ne(*ignored));
  if (!bad.any().item<bool>()) return index;
  int expected = kWell;
  health.compare_exchange_strong(expected, kPending);
  return index.masked_fill(bad, 0);  // the kernel stopped; what is in its output is of no use
}

// Where each op takes an index, what it indexes, and along which dimension.
struct Indexing {
  int index, indexed, dim;  // positions of arguments; dim: -1 where `along` says it
  int along, ignored;       // `indexed` -1: `along` is the position of the size itself
};
const std::unordered_map<std::string, Indexing>& indexing() {
  static const std::unordered_map<std::string, Indexing> all{
      {"aten::index_select", {2, 0, 1, 0, -1}},          {"aten::gather", {2, 0, 1, 0, -1}},
      {"aten::scatter_add", {2, 0, 1, 0, -1}},           {"aten::scatter_add_", {2, 0, 1, 0, -1}},
      {"aten::index_add", {2, 0, 1, 0, -1}},             {"aten::index_add_", {2, 0, 1, 0, -1}},
      {"aten::embedding", {1, 0, -1, 0, -1}},            {"aten::embedding_dense_backward", {1, -1, -1, 2, -1}},
      {"aten::nll_loss_forward", {1, 0, -1, -2, 4}},     {"aten::nll_loss2d_forward", {1, 0, -1, 1, 4}},
      {"aten::nll_loss_backward", {2, 1, -1, -2, 5}},    {"aten::nll_loss2d_backward", {2, 1, -1, 1, 5}},
  };
  return all;
}

void check_ranges(const std::string& name, torch::jit::Stack& stack, size_t first) {
  auto argument = [&](int i) -> IValue& { return stack[first + static_cast<size_t>(i)]; };
  auto found = indexing().find(name);
  if (found != indexing().end()) {
    const Indexing& of = found->second;
    int64_t size = 0;
    if (of.indexed < 0) {
      size = argument(of.along).toInt();
    } else {
      Tensor indexed = argument(of.indexed).toTensor();
      if (indexed.dim() == 0) return;
      // one class per target: another shape is refused before a kernel starts
      if (of.ignored >= 0 && indexed.dim() > 1 && argument(of.index).toTensor().dim() != indexed.dim() - 1) return;
      int64_t dim = of.dim >= 0 ? argument(of.dim).toInt() : of.along == -2 ? indexed.dim() - 1 : of.along;
      size = indexed.size(dim < 0 ? dim + indexed.dim() : dim);
    }
    std::optional<int64_t> ignored;
    if (of.ignored >= 0) ignored = argument(of.ignored).toInt();
    argument(of.index) = checked(argument(of.index).toTensor(), size, false, ignored);
  } else if (name == "aten::index" || name == "aten::index_put" || name == "aten::index_put_" || name == "aten::_index_put_impl_") {
    Tensor self = argument(0).toTensor();
    c10::List<std::optional<Tensor>> indices = argument(1).toOptionalTensorList(), replaced;
    int64_t dim = 0;
    for (const std::optional<Tensor>& index : indices) {
      const bool mask = index && index->defined() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
      if (mask) return;
      replaced.push_back(index && index->defined() && dim < self.dim() ? std::optional<Tensor>(checked(*index, self.size(dim), true, {})) : index);
      dim++;
    }
    argument(1) = replaced;
  }
}

// -- every op without a kernel of its own: the CPU's kernel on the device's memory -------------------------------------------------

bool waits_for_the_host(const std::string& name) {  // the shape or the answer depends on values
  static const std::unordered_set<std::string> all{"aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2", "aten::unique_dim",
                                                   "aten::bincount", "aten::unique_consecutive"};
  return all.count(name) > 0;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  launching();
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const auto first = stack->size() - count;
  const std::vector<IValue> given(stack->begin() + static_cast<int64_t>(first), stack->end());
  Translation translation;
  std::optional<int> asked;
  for (size_t i = 0; i < count; i++) {
    IValue& value = (*stack)[first + i];
    if (value.isTensor()) {
      value = translation.in(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> list;
      for (const Tensor& one : value.toTensorVector()) list.push_back(translation.in(one));
      value = c10::List<Tensor>(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor>& one : value.toOptionalTensorList()) list.push_back(one ? std::optional<Tensor>(translation.in(*one)) : one);
      value = list;
    } else if (value.isDevice()) {
      asked = index_of(value.toDevice());
      value = c10::Device(c10::kCPU);
    }
  }
  translation.device = translation.device < 0 ? asked.value_or(current_device) : translation.device;
  translation.check_devices(op);
  const auto& name = schema.name();
  if (waits_for_the_host(name)) synchronisations++, synchronising();
  {
    std::lock_guard<std::mutex> guard(planted_lock);
    int expected = kWell;
    if (!planted_op.empty() && name == planted_op && --planted_calls == 0) health.compare_exchange_strong(expected, kPending);
  }
  BelowEverything below;
  QuietResizing quiet;
  c10::WarningUtils::WarningHandlerGuard quietly(&quiet);
  if (check_indices) check_ranges(name, *stack, first);
  std::vector<IValue> aliases(stack->begin() + static_cast<int64_t>(first), stack->end());
  {
    std::optional<DrawsFromDevice> draws;
    if (!shares_host_generator && op.hasTag(at::Tag::nondeterministic_seeded)) draws.emplace(translation.device);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  std::unordered_map<c10::TensorImpl*, Tensor> same;  // an argument that is returned stays the same object
  for (size_t i = 0; i < count; i++) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    if (given[i].isTensor()) {
      translation.written(given[i].toTensor(), aliases[i].toTensor());
      same.emplace(aliases[i].toTensor().unsafeGetTensorImpl(), given[i].toTensor());
    } else if (given[i].isTensorList()) {
      auto before = given[i].toTensorVector(), after = aliases[i].toTensorVector();
      for (size_t j = 0; j < before.size(); j++) translation.written(before[j], after[j]);
    }
  }
  auto out = [&](const Tensor& result) {
    auto found = result.defined() ? same.find(result.unsafeGetTensorImpl()) : same.end();
    return found != same.end() ? found->second : translation.out(result);
  };
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) {
    IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = out(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> list;
      for (const Tensor& one : value.toTensorVector()) list.push_back(out(one));
      value = c10::List<Tensor>(list);
    }
  }
}

// -- kernels of its own: memory, copies and views ---------------------------------------------------------------------------------

struct OnDevice {
  explicit OnDevice(std::optional<c10::Device> device) : old(current_device) { current_device = device ? index_of(*device) : current_device; }
  ~OnDevice() { current_device = old; }
  int old;
};
Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  launching();
  check_dtype(dtype.value_or(c10::get_default_dtype_as_scalartype()));
  OnDevice on(device);
  return at::detail::empty_generic(size, &allocator, kSimKeys, dtype.value_or(c10::get_default_dtype_as_scalartype()), format);
}
Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  launching();
  check_dtype(dtype.value_or(c10::get_default_dtype_as_scalartype()));
  OnDevice on(device);
  return at::detail::empty_strided_generic(size, stride, &allocator, kSimKeys, dtype.value_or(c10::get_default_dtype_as_scalartype()));
}
Tensor viewed(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset.value_or(self.storage_offset()));
  return made;
}
Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return viewed(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}
Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return viewed(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), std::nullopt);
}
Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  auto inferred = at::infer_size_dv(C10_AS_INTARRAYREF_SLOW(size), self.numel());
  auto stride = at::detail::computeStride(self.sizes(), self.strides(), inferred);
  TORCH_CHECK(stride.has_value(), "view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces). Use .reshape(...) instead.");
  return viewed(self, inferred, *stride, std::nullopt);
}
Tensor copy_from(const Tensor& self, const Tensor& to, bool) {
  launching();
  if (is_sim(self) && to.is_cpu()) to_host++, synchronising();
  Translation translation;
  Tensor source = translation.in(self), target = translation.in(to);
  BelowEverything below;
  target.copy_(source);
  return to;
}
Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (self.sizes() != to.sizes()) to.resize_(self.sizes());
  return copy_from(self, to, false);
}
at::Scalar local_scalar_dense(const Tensor& self) {
  scalar_reads++;
  synchronising();
  Translation translation;
  Tensor alias = translation.in(self);
  BelowEverything below;
  return alias.item();
}
const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  Translation translation;
  Tensor alias = translation.in(self);
  BelowEverything below;
  alias.resize_(C10_AS_INTARRAYREF_SLOW(size), format);
  translation.written(self, alias);
  return self;
}
Tensor& set_storage(Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}
Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  const c10::SymInt count(static_cast<int64_t>(storage.nbytes() / self.element_size()));
  return set_storage(self, std::move(storage), 0, {count}, {c10::SymInt(1)});
}
using Maybe = std::optional<Tensor>;
using Ints = c10::SymIntArrayRef;
Tensor convolution(const Tensor& x, const Tensor& w, const Maybe& b, Ints stride, Ints padding, Ints dilation, bool transposed, Ints output_padding, c10::SymInt groups) {
  launching();
  Translation t;
  Tensor x_ = t.in(x), w_ = t.in(w);
  Maybe b_ = b && b->defined() ? Maybe(t.in(*b)) : Maybe();
  BelowEverything below;
  return t.out(at::convolution_symint(x_, w_, b_, stride, padding, dilation, transposed, output_padding, groups));
}
std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gy, const Tensor& x, const Tensor& w, Ints stride, Ints padding, Ints dilation, bool transposed, Ints output_padding, c10::SymInt groups, std::array<bool, 3> mask) {
  launching();
  Translation t;
  Tensor g_ = t.in(gy), x_ = t.in(x), w_ = t.in(w);
  std::vector<c10::SymInt> channels{transposed ? w.sym_size(1) * groups : w.sym_size(0)};
  at::OptionalSymIntArrayRef bias;
  if (mask[2]) bias = Ints(channels);
  BelowEverything below;
  auto r = at::convolution_backward_symint(g_, x_, w_, bias, stride, padding, dilation, transposed, output_padding, groups, mask);
  return {t.out(std::get<0>(r)), t.out(std::get<1>(r)), t.out(std::get<2>(r))};
}

// torch takes fused cells for LSTM and GRU on accelerators, and the CPU has no kernels of them. The workspace keeps what backward needs.
std::vector<Tensor> gates_of(const Tensor& input, const Tensor& hidden, const Maybe& b_ih, const Maybe& b_hh, int64_t n, Tensor* hidden_out) {
  Tensor i = b_ih && b_ih->defined() ? input + *b_ih : input, h = b_hh && b_hh->defined() ? hidden + *b_hh : hidden;
  if (hidden_out == nullptr) return (i + h).chunk(n, 1);
  *hidden_out = h;
  return i.chunk(n, 1);
}
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& cx, const Maybe& b_ih, const Maybe& b_hh) {
  auto g = gates_of(input, hidden, b_ih, b_hh, 4, nullptr);
  Tensor i = g[0].sigmoid(), f = g[1].sigmoid(), c = g[2].tanh(), o = g[3].sigmoid();
  Tensor cy = f * cx + i * c;
  return {o * cy.tanh(), cy, at::cat({i, f, c, o}, 1)};
}
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const Maybe& grad_hy, const Maybe& grad_cy, const Tensor& cx, const Tensor& cy, const Tensor& workspace, bool has_bias) {
  auto g = workspace.chunk(4, 1);
  Tensor out = cy.tanh(), zero = at::zeros_like(cy);
  Tensor hy = grad_hy && grad_hy->defined() ? *grad_hy : zero, from_cy = grad_cy && grad_cy->defined() ? *grad_cy : zero;
  Tensor gc = hy * g[3] * (1 - out * out) + from_cy;
  Tensor gates = at::cat({gc * g[2] * (1 - g[0]) * g[0], gc * cx * (1 - g[1]) * g[1], gc * g[0] * (1 - g[2] * g[2]), hy * out * (1 - g[3]) * g[3]}, 1);
  return {gates, gc * g[1], has_bias ? gates.sum(0) : Tensor()};
}
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& hx, const Maybe& b_ih, const Maybe& b_hh) {
  Tensor all;
  auto i = gates_of(input, hidden, b_ih, b_hh, 3, &all), h = all.chunk(3, 1);
  Tensor r = (i[0] + h[0]).sigmoid(), z = (i[1] + h[1]).sigmoid(), n = (i[2] + r * h[2]).tanh();
  return {n + z * (hx - n), at::cat({r, z, n, hx, h[2]}, 1)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad, const Tensor& workspace, bool has_bias) {
  auto w = workspace.chunk(5, 1);
  Tensor gn = grad * (1 - w[1]) * (1 - w[2] * w[2]), gz = grad * (w[3] - w[2]) * (1 - w[1]) * w[1], gr = gn * w[4] * (1 - w[0]) * w[0];
  Tensor input = at::cat({gr, gz, gn}, 1), hidden = at::cat({gr, gz, gn * w[0]}, 1);
  return {input, hidden, grad * w[1], has_bias ? input.sum(0) : Tensor(), has_bias ? hidden.sum(0) : Tensor()};
}

// Attention by the CPU's fused kernel where it has one.
int64_t attention_kernel(const Tensor& query, const Tensor&, const Tensor&, const Maybe& mask, double dropout, bool, std::optional<double>, bool) {
  const bool fused = dropout == 0.0 && query.dim() == 4 && !(mask && mask->defined() && mask->requires_grad());
  return fused ? 1 : 0;  // SDPBackend: 0 is math, 1 flash attention
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("view", &view);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  // torch would decompose these on a device that has no kernel of its own
  for (const char* op : {"native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"})
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {  // CUDA's lists
#define SIM_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SIM_FLOAT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_LOWER_PRECISION_FP(SIM_LOWER)
  AT_FORALL_FP32(SIM_FLOAT)
}

}  // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &attention_kernel);
}

extern "C" {  // for ctypes: what torch's dispatcher, and so a mode, never sees
void sim_register() { at::RegisterPrivateUse1HooksInterface(new SimHooks()); }
void sim_counts(int64_t* into) { into[0] = to_host, into[1] = scalar_reads, into[2] = synchronisations, into[3] = ops; }
int sim_current_device() { return current_device; }
void sim_set_device(int device) { current_device = device; }
void sim_limit(int device, int64_t bytes) { memory[device].limit = bytes; }
void sim_share_host_generator(int shares) { shares_host_generator = shares != 0; }
void sim_without_float64(int without) { without_float64 = without != 0; }
void sim_check_indices(int checks) { check_indices = checks != 0; }
void sim_plant(const char* op, int calls) {
  std::lock_guard<std::mutex> guard(planted_lock);
  planted_op = op, planted_calls = calls;
}
int sim_health() { return health; }
void sim_seed(int device, uint64_t seed) { generator(device).set_current_seed(seed); }
uint64_t sim_initial_seed(int device) { return generator(device).current_seed(); }
int64_t sim_rng_bytes() { return generator(0).get_state().numel(); }
void sim_get_rng(int device, uint8_t* into) {
  Tensor state = generator(device).get_state();
  std::memcpy(into, state.data_ptr(), static_cast<size_t>(state.numel()));
}
void sim_set_rng(int device, const uint8_t* from) {
  Tensor state = generator(device).get_state().clone();
  std::memcpy(state.data_ptr(), from, static_cast<size_t>(state.numel()));
  generator(device).set_state(state);
}
}
