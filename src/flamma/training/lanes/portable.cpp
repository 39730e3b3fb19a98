// Any machine: eight lanes, in two registers of four where SSE2 or NEON is all there is.
#include "variant.hpp"

const Variant* portable_variant() { return &variant; }
