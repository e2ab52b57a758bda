// The two sides of a product: a layer's weights as they lie in memory, and the tokens of one call.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "simd.h"

constexpr int kBlock = 16;     // outputs of a block of weights
constexpr int kTokens = 16;    // tokens of a tile
constexpr int kFewTokens = 8;  // 8-bit and 4-bit: the matrix unit pays from the next number on

// Filled in by product.py, field by field.
struct Linear {
    int64_t bits, n, k, group, groups, blocks, threads;
    int64_t tiled;           // the matrix unit may be used
    int64_t gated;           // the input is [m][2k]: silu of the first half times the second
    const float* norm;       // [k]: the input is normed by its root mean square and scaled by this, or null
    double eps;
    const uint8_t* words;    // [blocks][groups][group * 16 * bits / 8]
    const uint16_t* scales;  // 8-bit and 4-bit: bfloat16 [blocks][groups][16]
    const uint8_t* zeros;    // 4-bit: zero points in 1/16 [blocks][groups][16]
    const float* bias;       // [n] or null
};

// The tokens of one call, padded to whole groups; for the matrix unit in tiles of 16 tokens: [m / 16][pieces][16][piece].
struct Rows {
    std::vector<uint16_t> halves;  // bfloat16 [m][groups * group], for bfloat16 weights
    std::vector<int8_t> levels;    // the same in 8 bits, otherwise
    std::vector<float> scales;     // [m][groups], or [m / 16][groups][16]
    std::vector<int32_t> sums;     // of levels, likewise; for 8-bit weights times -128, their zero point
    bool tiled;
    int64_t piece, pieces;  // inputs of a tile, tiles of a row

    void resize(const Linear& w, int64_t m) {
        tiled = w.tiled && (w.bits == 16 || m > kFewTokens);
        piece = w.bits == 16 ? 32 : w.group;
        pieces = w.groups * w.group / piece;
        const int64_t room = tiled ? (m + kTokens - 1) / kTokens * kTokens : m;
        if (w.bits == 16) {
            halves.resize(room * w.groups * w.group);
        } else {
            levels.resize(room * w.groups * w.group);
            scales.resize(room * w.groups);
            sums.resize(room * w.groups);
        }
    }

    // Where a piece of a token's inputs lies.
    int64_t place(int64_t token, int64_t number) const { return spot(token, number) * piece; }

    // Where what belongs to it lies.
    int64_t spot(int64_t token, int64_t number) const {
        if (!tiled) return token * pieces + number;
        return (token / kTokens * pieces + number) * kTokens + token % kTokens;
    }
};

// One token's input in float32, normed or gated, zeros after its end.
inline void read_token(const Linear& w, const void* x, int64_t token, bool half, std::vector<float>& row) {
    row.assign(w.groups * w.group, 0.0f);
    const int64_t begin = token * w.k * (w.gated ? 2 : 1);
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < w.k; i += 16) {
        const __mmask16 mask = first_lanes(w.k - i);
        __m512 value = load16(x, begin + i, mask, half);
        if (w.gated) {
            const __m512 away = exp16(_mm512_sub_ps(_mm512_setzero_ps(), value));
            value = _mm512_mul_ps(_mm512_div_ps(value, _mm512_add_ps(one, away)), load16(x, begin + w.k + i, mask, half));
        }
        squares = _mm512_fmadd_ps(value, value, squares);
        _mm512_mask_storeu_ps(row.data() + i, mask, value);
    }
    if (!w.norm) return;
    const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(w.k);
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(mean + static_cast<float>(w.eps)));
    for (int64_t i = 0; i < w.k; i += 16) {
        const __mmask16 mask = first_lanes(w.k - i);
        const __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, row.data() + i), scale);
        _mm512_mask_storeu_ps(row.data() + i, mask, _mm512_mul_ps(value, _mm512_maskz_loadu_ps(mask, w.norm + i)));
    }
}

inline void narrow_token(const Linear& w, const std::vector<float>& row, int64_t token, Rows& out) {
    for (int64_t number = 0, i = 0; number < out.pieces; ++number) {
        uint16_t* halves = out.halves.data() + out.place(token, number);
        for (int64_t end = i + out.piece; i < end; i += 16, halves += 16)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(halves), narrow(_mm512_loadu_ps(row.data() + i)));
    }
}

inline void round_token(const Linear& w, const std::vector<float>& row, int64_t token, Rows& out) {
    for (int64_t g = 0; g < w.groups; ++g) {
        const float* values = row.data() + g * w.group;
        int8_t* levels = out.levels.data() + out.place(token, g);
        __m512 top = _mm512_setzero_ps(), damage = _mm512_setzero_ps();
        for (int64_t i = 0; i < w.group; i += 16) {
            const __m512 value = _mm512_loadu_ps(values + i);
            top = _mm512_max_ps(top, _mm512_abs_ps(value));
            damage = _mm512_fmadd_ps(value, _mm512_setzero_ps(), damage);  // NaN if a number is not finite
        }
        const float peak = std::max(_mm512_reduce_max_ps(top), 1e-30f);
        const __m512 inverse = _mm512_set1_ps(127.0f / peak);
        __m512i sum = _mm512_setzero_si512();
        for (int64_t i = 0; i < w.group; i += 16, levels += 16) {
            const __m512i level = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(values + i), inverse));
            sum = _mm512_add_epi32(sum, level);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(levels), _mm512_cvtsepi32_epi8(level));
        }
        out.scales[out.spot(token, g)] = peak / 127.0f + _mm512_reduce_add_ps(damage);
        out.sums[out.spot(token, g)] = _mm512_reduce_add_epi32(sum) * (w.bits == 8 ? -128 : 1);
    }
}

// The 4-bit zero points of a group of 16 outputs.
inline __m512 load_zeros(const Linear& w, int64_t at) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.zeros + at));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(raw)), _mm512_set1_ps(1.0f / 16));
}

// Results of count tokens for one block of outputs.
inline void finish(const Linear& w, int64_t block, const __m512* total, int64_t token, int64_t count, bool half,
            const void* add, void* y) {
    const int64_t output = block * kBlock;
    const __mmask16 mask = first_lanes(w.n - output);
    const __m512 bias = w.bias ? _mm512_maskz_loadu_ps(mask, w.bias + output) : _mm512_setzero_ps();
    for (int64_t i = 0; i < count; ++i) {
        __m512 value = _mm512_add_ps(total[i], bias);
        const int64_t at = (token + i) * w.n + output;
        if (add) value = _mm512_add_ps(value, load16(add, at, mask, half));
        store16(y, at, mask, half, value);
    }
}
