// Sixteen numbers in two registers of AVX2.

#pragma once

struct Floats {
    __m256 low, high;
};

struct Ints {
    __m256i low, high;
};

struct Lanes {  // of 16 numbers, those that count: the first
    int count;
};

constexpr Lanes kAll{16};

inline Lanes first_lanes(int64_t count) { return {static_cast<int>(count >= 16 ? 16 : count <= 0 ? 0 : count)}; }

inline Floats all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Floats nothing() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Floats plus(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats minus(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats times(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats over(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats times_plus(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats minus_times(Floats a, Floats b, Floats c) {  // c - a b
    return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
inline Floats higher(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats lower(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats magnitude(Floats a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline Floats nearest(Floats a) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, kMode), _mm256_round_ps(a.high, kMode)};
}
inline Ints to_ints(Floats a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }

// a 2^n for whole n with a normal power.
inline Floats times_two_to(Floats a, Floats n) {
    const __m256i bias = _mm256_set1_epi32(127);
    const Ints power = to_ints(n);
    return times(a, {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(power.low, bias), 23)),
                     _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(power.high, bias), 23))});
}

inline __m256i mask8(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Where a lane does not count, the other value.
inline Floats choose(Lanes lanes, Floats value, Floats other) {
    if (lanes.count == 16) return value;
    return {_mm256_blendv_ps(other.low, value.low, _mm256_castsi256_ps(mask8(lanes.count))),
            _mm256_blendv_ps(other.high, value.high, _mm256_castsi256_ps(mask8(lanes.count - 8)))};
}
inline Floats only(Lanes lanes, Floats value) { return choose(lanes, value, nothing()); }

// The 8 numbers of a register, always in the same order.
inline float sum_of(__m256 a) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float sum_of(Floats a) { return sum_of(_mm256_add_ps(a.low, a.high)); }
inline float highest_of(Floats a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// A bit for every lane.
inline unsigned lane_bits(__m256 low, __m256 high) {
    return static_cast<unsigned>(_mm256_movemask_ps(low)) | static_cast<unsigned>(_mm256_movemask_ps(high)) << 8;
}
inline unsigned at_least(Lanes lanes, Floats a, Floats b) {
    const unsigned found = lane_bits(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ));
    return found & ((1u << lanes.count) - 1);
}
inline unsigned not_numbers(Floats a) {
    return lane_bits(_mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q), _mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q));
}

inline Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline Floats load(const float* from, Lanes lanes) {
    if (lanes.count == 16) return load(from);
    return {_mm256_maskload_ps(from, mask8(lanes.count)), _mm256_maskload_ps(from + 8, mask8(lanes.count - 8))};
}
inline void store(float* to, Floats value) {
    _mm256_storeu_ps(to, value.low);
    _mm256_storeu_ps(to + 8, value.high);
}
inline void store(float* to, Floats value, Lanes lanes) {
    if (lanes.count == 16) return store(to, value);
    _mm256_maskstore_ps(to, mask8(lanes.count), value.low);
    _mm256_maskstore_ps(to + 8, mask8(lanes.count - 8), value.high);
}

inline __m256 widen(const uint16_t* halves) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
}

// To the nearest bfloat16, ties to even; not for infinities and NaN.
inline __m256i narrow(__m256 value) {
    const __m256i number = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(number, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(number, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}

inline Floats load_halves(const uint16_t* from) { return {widen(from), widen(from + 8)}; }
inline Floats load_halves(const uint16_t* from, Lanes lanes) {
    if (lanes.count == 16) return load_halves(from);
    uint16_t some[16] = {};
    std::memcpy(some, from, lanes.count * 2);
    return load_halves(some);
}
inline void store_halves(uint16_t* to, Floats value) {
    const __m256i mixed = _mm256_packus_epi32(narrow(value.low), narrow(value.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(mixed, 0xd8));
}
inline void store_halves(uint16_t* to, Floats value, Lanes lanes) {
    if (lanes.count == 16) return store_halves(to, value);
    uint16_t some[16];
    store_halves(some, value);
    std::memcpy(to, some, lanes.count * 2);
}
inline Floats load_bytes(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}

inline Ints no_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Ints plus(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline int32_t sum_of(Ints a) {
    alignas(32) int32_t eight[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(eight), _mm256_add_epi32(a.low, a.high));
    int32_t sum = 0;
    for (int32_t one : eight) sum += one;
    return sum;
}
// 16 integers in 16 bits each, in order.
inline __m256i shorts(Ints a) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8); }
inline void store_bytes(int8_t* to, Ints a) {
    const __m256i wide = shorts(a);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

// As many bfloat16 numbers as are multiplied at once.
constexpr int kPacked = 16;
using Packed = Floats;

inline Packed load_packed(const uint16_t* from, int64_t left) { return load_halves(from, first_lanes(left)); }

// Sums of 16 registers, each in the same order: lane i of the result is the sum of x[i].
inline Floats totals(const Floats* x) {
    __m256 halves[2];
    for (int h = 0; h < 2; ++h) {
        __m256 fours[2];
        for (int f = 0; f < 2; ++f) {
            const Floats* at = x + 8 * h + 4 * f;
            __m256 eights[4];
            for (int i = 0; i < 4; ++i) eights[i] = _mm256_add_ps(at[i].low, at[i].high);
            fours[f] = _mm256_hadd_ps(_mm256_hadd_ps(eights[0], eights[1]), _mm256_hadd_ps(eights[2], eights[3]));
        }
        halves[h] = _mm256_add_ps(_mm256_permute2f128_ps(fours[0], fours[1], 0x20),
                                  _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
    }
    return {halves[0], halves[1]};
}

// Numbers as products with weights read them: bfloat16 as float32; levels for 8-bit weights in 16 bits, of four the
// first, third, second and fourth.
using Half = float;

inline void store_half(Half* to, Floats value) {
    store(to, {_mm256_castsi256_ps(_mm256_slli_epi32(narrow(value.low), 16)),
               _mm256_castsi256_ps(_mm256_slli_epi32(narrow(value.high), 16))});
}
inline int level_width(int64_t bits) { return bits == 8 ? 2 : 1; }
inline void store_levels(int8_t* to, Ints level, int width) {
    if (width == 1) return store_bytes(to, level);
    const __m256i mixed = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(shorts(level), 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), mixed);
}
