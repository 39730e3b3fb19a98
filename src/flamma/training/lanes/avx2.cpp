// Eight lanes; compiled with -mavx2 -mfma where that is possible.
#if defined(__AVX2__) && defined(__FMA__)
#include "variant.hpp"

const Variant* avx2_variant() { return &variant; }
#else
#include "api.hpp"

const Variant* avx2_variant() { return nullptr; }
#endif
