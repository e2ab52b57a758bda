// What the kernels share: bfloat16, loads and stores of 16 numbers, and the exponential.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

constexpr __mmask16 kAll = 0xffff;

inline __mmask16 first_lanes(int64_t count) {
    return count >= 16 ? kAll : count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1u << count) - 1);
}

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

inline __m512 widen(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// To the nearest bfloat16, ties to even; not for infinities and NaN.
inline __m256i narrow(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

inline __m512 load16(const void* data, int64_t index, __mmask16 mask, bool half) {
    if (!half) return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(data) + index);
    return widen(_mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(data) + index));
}

inline void store16(void* data, int64_t index, __mmask16 mask, bool half, __m512 value) {
    if (!half)
        _mm512_mask_storeu_ps(static_cast<float*>(data) + index, mask, value);
    else
        _mm256_mask_storeu_epi16(static_cast<uint16_t*>(data) + index, mask, narrow(value));
}

// e^x to about 1e-7 relative: 2^n times a polynomial in the rest (coefficients of the Taylor series at 0, |rest| <= ln2 / 2).
inline __m512 exp16(__m512 x) {
    x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(88.0f)), _mm512_set1_ps(-87.0f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 rest = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    rest = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), rest);
    __m512 sum = _mm512_set1_ps(1.0f / 5040);
    for (float term : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(term));
    return _mm512_scalef_ps(sum, n);
}
