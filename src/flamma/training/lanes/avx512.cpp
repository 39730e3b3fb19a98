// Sixteen lanes; compiled with -mavx512f where that is possible.
#if defined(__AVX512F__)
#include "variant.hpp"

const Variant* avx512_variant() { return &variant; }
#else
#include "api.hpp"

const Variant* avx512_variant() { return nullptr; }
#endif
