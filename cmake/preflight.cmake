# Looks for all that a build needs, and says at once what is missing and which packages bring it.
set(missing "")
macro(monarch_missing what debian fedora)
  string(APPEND missing "\n  ${what}\n      Debian, Ubuntu: apt-get install ${debian}\n      Fedora, RHEL:   dnf install ${fedora}")
endmacro()

# CMake's own words for "no compiler" name variables of CMake and no package.
include(CheckLanguage)
check_language(CXX)
if(CMAKE_CXX_COMPILER)
  enable_language(CXX)
  include(CheckCXXSourceCompiles)
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)  # what has no main() is compiled and not linked
  check_cxx_source_compiles("
    #include <bit>
    #include <concepts>
    #include <coroutine>
    #include <latch>
    #include <span>
    std::latch one(std::bit_ceil(1u));
    template <std::integral N> std::span<N> all(N* first, N* last) { return {first, last}; }
    std::suspend_never never() { return {}; }" MONARCH_CXX_20)
  unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
  if(NOT MONARCH_CXX_20)
    monarch_missing("a compiler with C++20 (g++ 12 or later is known to work); found ${CMAKE_CXX_COMPILER}, \
${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}. Another one: CXX=/path/to/g++" g++ gcc-c++)
  endif()
  set(CMAKE_REQUIRED_LINK_OPTIONS -static)
  check_cxx_source_compiles("int main() {}" MONARCH_STATIC_PROGRAMS)  # some systems have a package of its own for libc.a
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
  find_package(OpenSSL 3.0 QUIET COMPONENTS Crypto SSL)
  if(NOT OPENSSL_FOUND)
    monarch_missing("the headers of OpenSSL 3. Elsewhere than usual: OPENSSL_ROOT_DIR=/path" libssl-dev openssl-devel)
  endif()
else()
  monarch_missing("a compiler with C++20 (g++ 12 or later is known to work)" g++ gcc-c++)
  monarch_missing("the headers of OpenSSL 3, if they are not there yet" libssl-dev openssl-devel)
endif()

if(MONARCH_PYTHON)
  find_package(Python 3.10 QUIET COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
  if(NOT Python_Development.Module_FOUND)
    monarch_missing("Python 3.10 or later with its headers (Python.h); looked at: ${Python_EXECUTABLE}"
                    "python3-dev python3-venv" python3-devel)
  endif()
endif()

if(missing)
  message(FATAL_ERROR "Monarch is not built, because this is missing:${missing}\nInstall it, then start again.")
endif()
