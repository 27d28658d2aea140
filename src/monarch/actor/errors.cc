#include "monarch/actor/errors.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "monarch/wire/value.h"

namespace monarch {

Error CallError::to_error() const {
  switch (kind) {
    case Kind::kActor: return Error{ErrorCode::kBug, text};
    case Kind::kSupervision: return Error{ErrorCode::kClosed, text};
    case Kind::kDeadline: break;
  }
  return Error{ErrorCode::kDeadline, text};
}

void CallError::raise() const {
  switch (kind) {
    case Kind::kActor: throw ActorError(*this);
    case Kind::kSupervision: throw SupervisionError(*this);
    case Kind::kDeadline: break;
  }
  throw TimeoutError(*this);
}

namespace internal {

std::string to_utf8(std::string text) {
  if (is_utf8(text)) return text;
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return text;
}

ExceptionText current_exception_text() {
  ExceptionText text;
  if (const std::type_info* type = abi::__cxa_current_exception_type()) {
    int status = 0;
    std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type->name(), nullptr, nullptr, &status),
                                                     &std::free);
    text.type = to_utf8(status == 0 ? name.get() : type->name());
  }
  try {
    throw;
  } catch (const std::exception& error) {
    text.what = to_utf8(error.what());
  } catch (const std::string& message) {
    text.what = to_utf8(message);
  } catch (const char* message) {
    text.what = to_utf8(message);
  } catch (...) {
  }
  return text;
}

}  // namespace internal
}  // namespace monarch
