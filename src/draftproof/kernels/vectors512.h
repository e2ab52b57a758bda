// Products of a few tokens by AVX-512 (VNNI and BF16), for product.cpp.

#pragma once

#include "rows.h"

constexpr int kShare = 9;  // most tokens that share one reading of a block

inline int64_t share_limit(int64_t) { return kShare; }

// Which of how many shares of the tokens reads a block.
struct Place {
    int64_t share, shares;
};

// Weights asked for before their use: `step` bytes further with every word that is used.
struct Ahead {
    const char* next;
    int64_t step;
};

// One share reads its own block, so it asks for what comes a little later (few tokens wait for memory; many are busy, and
// must ask further ahead). Two read a block one after the other: each asks for half of the next block, so that memory is
// busy all the time. With more of them arithmetic takes longer than reading.
template <int BITS, int MT>
Ahead plan_ahead(const uint8_t* words, int64_t block_bytes, Place place) {
    const char* here = reinterpret_cast<const char*>(words);
    if (place.shares == 2) return {here + block_bytes + place.share * block_bytes / 2, 32};
    return {here + (BITS == 16 ? (MT < 5 ? 6144 : 12288) : BITS == 8 && MT < 3 ? 3072 : 6144), 64};
}

template <int BITS, int MT>
void ask(Ahead& ahead) {
    if constexpr (BITS > 4 && MT < (BITS == 16 ? 5 : 3))
        _mm_prefetch(ahead.next, _MM_HINT_T0);
    else
        _mm_prefetch(ahead.next, _MM_HINT_T1);
    ahead.next += ahead.step;
}

inline __m512i four(const void* bytes) {
    int32_t value;
    std::memcpy(&value, bytes, 4);
    return _mm512_set1_epi32(value);
}

// One block of 16 outputs for MT tokens from `token` on.
template <int BITS, int MT>
void times_share(const Linear& w, int64_t block, const Rows& x, int64_t token, Place place, Floats* total) {
    const int64_t stride = w.groups * w.group, first = token * w.groups;
    const int64_t size = stride * kBlock * BITS / 8;
    const uint8_t* words = w.words + block * size;
    Ahead ahead = plan_ahead<BITS, MT>(words, size, place);
    const int8_t* row = x.levels.data() + token * stride;
    const __m512i low = _mm512_set1_epi8(15);
    for (int m = 0; m < MT; ++m) total[m] = nothing();
    for (int64_t g = 0; g < w.groups; ++g, row += w.group) {
        __m512i dot[MT];
        for (int m = 0; m < MT; ++m)
            dot[m] = BITS == 8 ? _mm512_set1_epi32(x.sums[first + m * w.groups + g]) : _mm512_setzero_si512();
        for (int64_t i = 0; i < w.group; i += 32 / BITS, words += 64) {
            const __m512i word = _mm512_load_si512(words);
            ask<BITS, MT>(ahead);
            if constexpr (BITS == 8) {
                for (int m = 0; m < MT; ++m) dot[m] = _mm512_dpbusd_epi32(dot[m], word, four(row + m * stride + i));
            } else {
                const __m512i even = _mm512_and_si512(word, low), odd = _mm512_and_si512(_mm512_srli_epi16(word, 4), low);
                for (int m = 0; m < MT; ++m) {
                    dot[m] = _mm512_dpbusd_epi32(dot[m], even, four(row + m * stride + i));
                    dot[m] = _mm512_dpbusd_epi32(dot[m], odd, four(row + m * stride + i + 4));
                }
            }
        }
        const int64_t at = (block * w.groups + g) * kBlock;
        const Floats scale = load16(w.scales, at, kAll, true);
        const Floats zero = BITS == 4 ? load_zeros(w, at) : nothing();
        for (int m = 0; m < MT; ++m) {
            const int64_t here = first + m * w.groups + g;
            Floats value = _mm512_cvtepi32_ps(dot[m]);
            if constexpr (BITS == 4)
                value = minus_times(zero, all(static_cast<float>(x.sums[here])), value);
            total[m] = times_plus(value, times(scale, all(x.scales[here])), total[m]);
        }
    }
}

// The same for bfloat16 weights, with two sums per output to hide their latency.
template <int MT>
void times_halves(const Linear& w, int64_t block, const Rows& x, int64_t token, Place place, Floats* total) {
    const int64_t stride = w.groups * w.group;
    const int64_t size = stride * kBlock * 2;
    const uint8_t* words = w.words + block * size;
    Ahead ahead = plan_ahead<16, MT>(words, size, place);
    const uint16_t* row = x.halves.data() + token * stride;
    Floats sums[MT][2];
    for (int m = 0; m < MT; ++m) sums[m][0] = sums[m][1] = nothing();
    for (int64_t i = 0; i < stride; i += 4) {
        for (int part = 0; part < 2; ++part, words += 64) {
            const __m512bh word = (__m512bh)_mm512_load_si512(words);
            ask<16, MT>(ahead);
            for (int m = 0; m < MT; ++m)
                sums[m][part] = _mm512_dpbf16_ps(sums[m][part], word, (__m512bh)four(row + m * stride + i + 2 * part));
        }
    }
    for (int m = 0; m < MT; ++m) total[m] = plus(sums[m][0], sums[m][1]);
}

template <int MT>
void times_share(const Linear& w, int64_t block, const Rows& x, int64_t token, Place place, Floats* total) {
    if (w.bits == 16) return times_halves<MT>(w, block, x, token, place, total);
    if (w.bits == 8) return times_share<8, MT>(w, block, x, token, place, total);
    return times_share<4, MT>(w, block, x, token, place, total);
}

inline void times_share(const Linear& w, int64_t block, const Rows& x, int64_t token, int64_t count, Place place,
                        Floats* total) {
    switch (count) {
        case 1: return times_share<1>(w, block, x, token, place, total);
        case 2: return times_share<2>(w, block, x, token, place, total);
        case 3: return times_share<3>(w, block, x, token, place, total);
        case 4: return times_share<4>(w, block, x, token, place, total);
        case 5: return times_share<5>(w, block, x, token, place, total);
        case 6: return times_share<6>(w, block, x, token, place, total);
        case 7: return times_share<7>(w, block, x, token, place, total);
        case 8: return times_share<8>(w, block, x, token, place, total);
        default: return times_share<9>(w, block, x, token, place, total);
    }
}
