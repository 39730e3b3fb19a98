// A prototype of a residual network's layers with the images of a batch in the lanes.
#include "direct.hpp"
#include "norm.hpp"
#include "winograd.hpp"

namespace {

using Forward = void (*)(const float* x, const float* w, float* u, float* y);
using Backward = void (*)(const float* x, const float* dy, const float* u, float* dx, float* dw);

struct Method {
    Forward forward;
    Backward backward;
};

template <class M>
constexpr Method method() {
    return {M::forward, M::backward};
}

template <int C, int S, class Largest>
struct Methods {
    static constexpr Method all[] = {method<Direct<C, C, S>>(), method<Winograd<Two, C, C, S>>(),
                                     method<Winograd<Largest, C, C, S>>()};
};

// By shape, then direct, F(2x2, 3x3) and the largest tile.
constexpr const Method* METHODS[] = {Methods<16, 16, Four>::all, Methods<32, 8, Four>::all,
                                     Methods<64, 4, Four>::all, Methods<128, 2, Pair>::all};

// The first convolution, then by stage the other one of 3x3 and that of the shortcut.
constexpr Method STRIDED[] = {
    method<Direct<3, 16, 32, 3, 2>>(),  method<Direct<16, 32, 16, 3, 2>>(),
    method<Direct<16, 32, 16, 1, 2>>(), method<Direct<32, 64, 8, 3, 2>>(),
    method<Direct<32, 64, 8, 1, 2>>(),  method<Direct<64, 128, 4, 3, 2>>(),
    method<Direct<64, 128, 4, 1, 2>>(),
};

struct NormMethod {
    void (*forward)(const float*, const float*, const float*, const float*, float*, float*);
    void (*backward)(const float*, const float*, const float*, const float*, const float*, float*,
                     float*, float*, float*);
};

// Alone, with a ReLU, and with a shortcut and a ReLU.
template <class M>
struct NormMethods {
    static constexpr NormMethod all[] = {
        {M::template forward<false, false>, M::template backward<false, false>},
        {M::template forward<false, true>, M::template backward<false, true>},
        {M::template forward<true, true>, M::template backward<true, true>}};
};

constexpr const NormMethod* NORMS[] = {
    NormMethods<Norm<16, 16>>::all, NormMethods<Norm<32, 8>>::all, NormMethods<Norm<64, 4>>::all,
    NormMethods<Norm<128, 2>>::all};

}  // namespace

extern "C" {

int pixel_floats(int channels) { return static_cast<int>(pixel_size(channels)); }

// Writes the transformed weights to u (the direct method needs none).
void forward(int shape, int how, const float* x, const float* w, float* u, float* y) {
    METHODS[shape][how].forward(x, w, u, y);
}

// u: the transformed weights, or the weights of the direct method. Either gradient may be null.
void backward(int shape, int how, const float* x, const float* dy, const float* u, float* dx,
              float* dw) {
    METHODS[shape][how].backward(x, dy, u, dx, dw);
}

void strided_forward(int which, const float* x, const float* w, float* y) {
    STRIDED[which].forward(x, w, nullptr, y);
}

void strided_backward(int which, const float* x, const float* dy, const float* w, float* dx,
                      float* dw) {
    STRIDED[which].backward(x, dy, w, dx, dw);
}

void norm_forward(int shape, int kind, const float* x, const float* scale, const float* shift,
                  const float* shortcut, float* y, float* kept) {
    NORMS[shape][kind].forward(x, scale, shift, shortcut, y, kept);
}

void norm_backward(int shape, int kind, const float* x, const float* y, const float* dy,
                   const float* scale, const float* kept, float* dx, float* shared, float* dscale,
                   float* dshift) {
    NORMS[shape][kind].backward(x, y, dy, scale, kept, dx, shared, dscale, dshift);
}
}
