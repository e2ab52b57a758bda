// Products of a few tokens by AVX2, for product.cpp.

#pragma once

#include "rows.h"

constexpr int kShare = 6;  // most tokens that share one reading of a block

// The same for 8-bit and 4-bit weights: integers need more registers.
inline int64_t share_limit(int64_t bits) { return bits == 16 ? kShare : 4; }

// Which of how many shares of the tokens reads a block.
struct Place {
    int64_t share, shares;
};

constexpr int kAhead = 2048;  // bytes asked for before their use

// 32 bytes of a block: 8 outputs.
inline __m256i eight(const uint8_t* words) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(words)); }

inline __m256i four(const int8_t* bytes) {
    int32_t value;
    std::memcpy(&value, bytes, 4);
    return _mm256_set1_epi32(value);
}

// Compilers move the loads of many tokens together, and then have too few registers for the sums.
inline void in_order(__m256& low, __m256& high) { asm volatile("" : "+x"(low), "+x"(high)); }

// One block of 16 outputs for MT tokens from `token` on, bfloat16 weights: an output's products are added up one by one.
template <int MT>
void times_halves(const Linear& w, int64_t block, const Rows& x, int64_t token, Floats* total) {
    const int64_t stride = w.groups * w.group;
    const uint8_t* words = w.words + block * stride * kBlock * 2;
    const float* row = x.halves.data() + token * stride;
    const __m256i upper = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000));
    __m256 low[MT], high[MT];
#pragma GCC unroll 6
    for (int m = 0; m < MT; ++m) low[m] = high[m] = _mm256_setzero_ps();
    for (int64_t i = 0; i < stride; i += 2, words += 64, row += 2) {
        _mm_prefetch(words + kAhead, _MM_HINT_T0);
        __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(eight(words), 16));
        __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(eight(words + 32), 16));
#pragma GCC unroll 6
        for (int m = 0; m < MT; ++m) {
            const __m256 value = _mm256_broadcast_ss(row + m * stride);
            low[m] = _mm256_fmadd_ps(first, value, low[m]);
            high[m] = _mm256_fmadd_ps(second, value, high[m]);
            in_order(low[m], high[m]);
        }
        first = _mm256_castsi256_ps(_mm256_and_si256(upper, eight(words)));
        second = _mm256_castsi256_ps(_mm256_and_si256(upper, eight(words + 32)));
#pragma GCC unroll 6
        for (int m = 0; m < MT; ++m) {
            const __m256 value = _mm256_broadcast_ss(row + m * stride + 1);
            low[m] = _mm256_fmadd_ps(first, value, low[m]);
            high[m] = _mm256_fmadd_ps(second, value, high[m]);
            in_order(low[m], high[m]);
        }
    }
#pragma GCC unroll 6
    for (int m = 0; m < MT; ++m) total[m] = {low[m], high[m]};
}

// The sums of one group of 8-bit weights: 64 bytes are 16 outputs x 4 inputs, taken as two times two 16-bit numbers.
template <int MT>
void group8(const Linear& w, const uint8_t* words, const int8_t* row, int64_t stride, Ints* dot) {
    const __m256i lower = _mm256_set1_epi16(255);
    for (int64_t i = 0; i < w.group; i += 4, words += 64, row += 8) {
        _mm_prefetch(words + kAhead, _MM_HINT_T0);
        __m256i first = _mm256_and_si256(lower, eight(words)), second = _mm256_and_si256(lower, eight(words + 32));
#pragma GCC unroll 6
        for (int m = 0; m < MT; ++m) {
            const __m256i value = four(row + m * stride);
            dot[m].low = _mm256_add_epi32(dot[m].low, _mm256_madd_epi16(first, value));
            dot[m].high = _mm256_add_epi32(dot[m].high, _mm256_madd_epi16(second, value));
        }
        first = _mm256_srli_epi16(eight(words), 8), second = _mm256_srli_epi16(eight(words + 32), 8);
#pragma GCC unroll 6
        for (int m = 0; m < MT; ++m) {
            const __m256i value = four(row + m * stride + 4);
            dot[m].low = _mm256_add_epi32(dot[m].low, _mm256_madd_epi16(first, value));
            dot[m].high = _mm256_add_epi32(dot[m].high, _mm256_madd_epi16(second, value));
        }
    }
}

// The same for 4-bit weights: 64 bytes are 16 outputs x 8 inputs. A group's 32 inputs, two by two, fill 16 bits at most:
// 16 products of up to 15 x 127.
template <int MT>
void group4(const Linear& w, const uint8_t* words, const int8_t* row, int64_t stride, Ints* dot) {
    const __m256i lower = _mm256_set1_epi8(15);
    Ints sums[MT];
#pragma GCC unroll 6
    for (int m = 0; m < MT; ++m) sums[m] = no_ints();
    for (int64_t i = 0; i < w.group; i += 8, words += 64, row += 8) {
        _mm_prefetch(words + kAhead, _MM_HINT_T0);
        for (int part = 0; part < 2; ++part) {
            __m256i first = eight(words), second = eight(words + 32);
            if (part) first = _mm256_srli_epi16(first, 4), second = _mm256_srli_epi16(second, 4);
            first = _mm256_and_si256(lower, first), second = _mm256_and_si256(lower, second);
#pragma GCC unroll 6
            for (int m = 0; m < MT; ++m) {
                const __m256i value = four(row + m * stride + 4 * part);
                sums[m].low = _mm256_add_epi16(sums[m].low, _mm256_maddubs_epi16(first, value));
                sums[m].high = _mm256_add_epi16(sums[m].high, _mm256_maddubs_epi16(second, value));
            }
        }
    }
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 6
    for (int m = 0; m < MT; ++m)
        dot[m] = {_mm256_madd_epi16(sums[m].low, ones), _mm256_madd_epi16(sums[m].high, ones)};
}

inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }

// One block of 16 outputs for MT tokens from `token` on, 8-bit and 4-bit weights.
template <int BITS, int MT>
void times_levels(const Linear& w, int64_t block, const Rows& x, int64_t token, Floats* total) {
    const int64_t stride = w.groups * w.group * x.width, first = token * w.groups, size = w.group * kBlock * BITS / 8;
    const uint8_t* words = w.words + block * w.groups * size;
    const int8_t* row = x.levels.data() + token * stride;
    Floats sum[MT];
#pragma GCC unroll 6
    for (int m = 0; m < MT; ++m) sum[m] = nothing();
    for (int64_t g = 0; g < w.groups; ++g, row += w.group * x.width, words += size) {
        Ints dot[MT];
#pragma GCC unroll 6
        for (int m = 0; m < MT; ++m) {
            const __m256i start = _mm256_set1_epi32(x.sums[first + m * w.groups + g]);
            dot[m] = {start, start};
        }
        if constexpr (BITS == 8)
            group8<MT>(w, words, row, stride, dot);
        else
            group4<MT>(w, words, row, stride, dot);
        const int64_t at = (block * w.groups + g) * kBlock;
        const Floats scale = load_halves(w.scales + at);
        const Floats zero = BITS == 4 ? load_zeros(w, at) : nothing();
#pragma GCC unroll 6
        for (int m = 0; m < MT; ++m) {
            const int64_t here = first + m * w.groups + g;
            Floats value = to_floats(dot[m]);
            if constexpr (BITS == 4) value = minus_times(zero, all(static_cast<float>(x.sums[here])), value);
            sum[m] = times_plus(value, times(scale, all(x.scales[here])), sum[m]);
        }
    }
#pragma GCC unroll 6
    for (int m = 0; m < MT; ++m) total[m] = sum[m];
}

template <int MT>
void times_share(const Linear& w, int64_t block, const Rows& x, int64_t token, Floats* total) {
    if (w.bits == 16) return times_halves<MT>(w, block, x, token, total);
    if constexpr (MT <= 4) {
        if (w.bits == 8) return times_levels<8, MT>(w, block, x, token, total);
        return times_levels<4, MT>(w, block, x, token, total);
    }
}

inline void times_share(const Linear& w, int64_t block, const Rows& x, int64_t token, int64_t count, Place,
                        Floats* total) {
    switch (count) {
        case 1: return times_share<1>(w, block, x, token, total);
        case 2: return times_share<2>(w, block, x, token, total);
        case 3: return times_share<3>(w, block, x, token, total);
        case 4: return times_share<4>(w, block, x, token, total);
        case 5: return times_share<5>(w, block, x, token, total);
        default: return times_share<6>(w, block, x, token, total);
    }
}
