// Any machine: four lanes, as SSE2 and NEON have them.
#include "variant.hpp"

const Variant* portable_variant() { return &variant; }
