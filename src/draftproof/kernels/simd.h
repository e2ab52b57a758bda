// What the kernels share: bfloat16, sixteen numbers at a time, and the exponential.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

inline float from_bf16(uint16_t value) {
    const uint32_t wide = static_cast<uint32_t>(value) << 16;
    float result;
    std::memcpy(&result, &wide, 4);
    return result;
}

inline uint16_t to_bf16(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, 4);
    return static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}

#ifdef __AVX512BF16__
#include "simd512.h"
#else
#include "simd256.h"
#endif

inline Floats load16(const void* data, int64_t index, Lanes lanes, bool half) {
    if (!half) return load(static_cast<const float*>(data) + index, lanes);
    return load_halves(static_cast<const uint16_t*>(data) + index, lanes);
}

inline void store16(void* data, int64_t index, Lanes lanes, bool half, Floats value) {
    if (!half)
        store(static_cast<float*>(data) + index, value, lanes);
    else
        store_halves(static_cast<uint16_t*>(data) + index, value, lanes);
}

// e^x to about 1e-7 relative: 2^n times a polynomial in the rest (coefficients of the Taylor series at 0, |rest| <= ln2 / 2).
inline Floats exp16(Floats x) {
    x = higher(lower(x, all(88.0f)), all(-87.0f));
    const Floats n = nearest(times(x, all(1.44269504f)));
    Floats rest = minus_times(n, all(0.693359375f), x);
    rest = minus_times(n, all(-2.12194440e-4f), rest);
    Floats sum = all(1.0f / 5040);
    for (float term : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        sum = times_plus(sum, rest, all(term));
    return times_two_to(sum, n);
}
