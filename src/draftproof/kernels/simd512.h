// Sixteen numbers in one register of AVX-512, with its products of bfloat16.

#pragma once

using Floats = __m512;
using Ints = __m512i;
using Lanes = __mmask16;  // of 16 numbers, those that count

constexpr Lanes kAll = 0xffff;

inline Lanes first_lanes(int64_t count) {
    return count >= 16 ? kAll : count <= 0 ? Lanes{0} : static_cast<Lanes>((1u << count) - 1);
}

inline Floats all(float value) { return _mm512_set1_ps(value); }
inline Floats nothing() { return _mm512_setzero_ps(); }
inline Floats plus(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats minus(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats over(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats times_plus(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats minus_times(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
inline Floats higher(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats lower(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats magnitude(Floats a) { return _mm512_abs_ps(a); }
inline Floats nearest(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }
inline Floats times_two_to(Floats a, Floats n) { return _mm512_scalef_ps(a, n); }

// Where a lane does not count, the other value.
inline Floats choose(Lanes lanes, Floats value, Floats other) { return _mm512_mask_blend_ps(lanes, other, value); }
inline Floats only(Lanes lanes, Floats value) { return _mm512_maskz_mov_ps(lanes, value); }

inline float sum_of(Floats a) { return _mm512_reduce_add_ps(a); }
inline float highest_of(Floats a) { return _mm512_reduce_max_ps(a); }

// A bit for every lane.
inline unsigned at_least(Lanes lanes, Floats a, Floats b) { return _mm512_mask_cmp_ps_mask(lanes, a, b, _CMP_GE_OQ); }
inline unsigned not_numbers(Floats a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }

inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load(const float* from, Lanes lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
inline void store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
inline void store(float* to, Floats value, Lanes lanes) { _mm512_mask_storeu_ps(to, lanes, value); }

inline Floats widen(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// To the nearest bfloat16, ties to even; not for infinities and NaN.
inline __m256i narrow(Floats value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

inline Floats load_halves(const uint16_t* from) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
inline Floats load_halves(const uint16_t* from, Lanes lanes) { return widen(_mm256_maskz_loadu_epi16(lanes, from)); }
inline void store_halves(uint16_t* to, Floats value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow(value)); }
inline void store_halves(uint16_t* to, Floats value, Lanes lanes) { _mm256_mask_storeu_epi16(to, lanes, narrow(value)); }
inline Floats load_bytes(const uint8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

inline Ints no_ints() { return _mm512_setzero_si512(); }
inline Ints to_ints(Floats a) { return _mm512_cvtps_epi32(a); }
inline Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline int32_t sum_of(Ints a) { return _mm512_reduce_add_epi32(a); }
inline void store_bytes(int8_t* to, Ints a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(a)); }

// As many bfloat16 numbers as are multiplied at once.
constexpr int kPacked = 32;
using Packed = __m512i;

inline Packed load_packed(const uint16_t* from, int64_t left) {
    return _mm512_maskz_loadu_epi16(left >= 32 ? 0xffffffffu : (1u << left) - 1, from);
}
inline Floats times_plus(Packed a, Packed b, Floats sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

// Sums of 16 registers, each in the same order: lane i of the result is the sum of x[i].
inline Floats totals(const Floats* x) {
    Floats quads[4];
    for (int i = 0; i < 4; ++i) {
        Floats pairs[2];
        for (int j = 0; j < 2; ++j) {
            const Floats a = x[4 * i + 2 * j], b = x[4 * i + 2 * j + 1];
            pairs[j] = plus(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        }
        const __m512d a = _mm512_castps_pd(pairs[0]), b = _mm512_castps_pd(pairs[1]);
        quads[i] = plus(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    Floats halves[2];
    for (int i = 0; i < 2; ++i)
        halves[i] = plus(_mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0xdd));
    return plus(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88), _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}

// Numbers as products with weights read them.
using Half = uint16_t;

inline void store_half(Half* to, Floats value) { store_halves(to, value); }
inline int level_width(int64_t) { return 1; }
inline void store_levels(int8_t* to, Ints level, int) { store_bytes(to, level); }
