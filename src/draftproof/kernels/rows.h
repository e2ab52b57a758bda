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
    std::vector<Half> halves;      // bfloat16 [m][groups * group], for bfloat16 weights
    std::vector<int8_t> levels;    // the same in levels of `width` bytes, otherwise
    std::vector<float> scales;     // [m][groups], or [m / 16][groups][16]
    std::vector<int32_t> sums;     // of levels, likewise; for 8-bit weights times -128, their zero point
    bool tiled;
    int width;
    int64_t piece, pieces;  // inputs of a tile, tiles of a row

    void resize(const Linear& w, int64_t m) {
        tiled = w.tiled && (w.bits == 16 || m > kFewTokens);
        width = level_width(w.bits);
        piece = w.bits == 16 ? 32 : w.group;
        pieces = w.groups * w.group / piece;
        const int64_t room = tiled ? (m + kTokens - 1) / kTokens * kTokens : m;
        if (w.bits == 16) {
            halves.resize(room * w.groups * w.group);
        } else {
            levels.resize(room * w.groups * w.group * width);
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
    const Floats one = all(1.0f);
    Floats squares = nothing();
    for (int64_t i = 0; i < w.k; i += 16) {
        const Lanes lanes = first_lanes(w.k - i);
        Floats value = load16(x, begin + i, lanes, half);
        if (w.gated) {
            const Floats away = exp16(minus(nothing(), value));
            value = times(over(value, plus(one, away)), load16(x, begin + w.k + i, lanes, half));
        }
        squares = times_plus(value, value, squares);
        store(row.data() + i, value, lanes);
    }
    if (!w.norm) return;
    const float mean = sum_of(squares) / static_cast<float>(w.k);
    const Floats scale = all(1.0f / std::sqrt(mean + static_cast<float>(w.eps)));
    for (int64_t i = 0; i < w.k; i += 16) {
        const Lanes lanes = first_lanes(w.k - i);
        const Floats value = times(load(row.data() + i, lanes), scale);
        store(row.data() + i, times(value, load(w.norm + i, lanes)), lanes);
    }
}

inline void narrow_token(const std::vector<float>& row, int64_t token, Rows& out) {
    for (int64_t number = 0, i = 0; number < out.pieces; ++number) {
        Half* halves = out.halves.data() + out.place(token, number);
        for (int64_t end = i + out.piece; i < end; i += 16, halves += 16) store_half(halves, load(row.data() + i));
    }
}

inline void round_token(const Linear& w, const std::vector<float>& row, int64_t token, Rows& out) {
    for (int64_t g = 0; g < w.groups; ++g) {
        const float* values = row.data() + g * w.group;
        int8_t* levels = out.levels.data() + out.place(token, g) * out.width;
        Floats top = nothing(), damage = nothing();
        for (int64_t i = 0; i < w.group; i += 16) {
            const Floats value = load(values + i);
            top = higher(top, magnitude(value));
            damage = times_plus(value, nothing(), damage);  // NaN if a number is not finite
        }
        const float peak = std::max(highest_of(top), 1e-30f);
        const Floats inverse = all(127.0f / peak);
        Ints sum = no_ints();
        for (int64_t i = 0; i < w.group; i += 16, levels += 16 * out.width) {
            const Ints level = to_ints(times(load(values + i), inverse));
            sum = plus(sum, level);
            store_levels(levels, level, out.width);
        }
        out.scales[out.spot(token, g)] = peak / 127.0f + sum_of(damage);
        out.sums[out.spot(token, g)] = sum_of(sum) * (w.bits == 8 ? -128 : 1);
    }
}

// The 4-bit zero points of a group of 16 outputs.
inline Floats load_zeros(const Linear& w, int64_t at) { return times(load_bytes(w.zeros + at), all(1.0f / 16)); }

// Results of count tokens for one block of outputs.
inline void finish(const Linear& w, int64_t block, const Floats* total, int64_t token, int64_t count, bool half,
                   const void* add, void* y) {
    const int64_t output = block * kBlock;
    const Lanes lanes = first_lanes(w.n - output);
    const Floats bias = w.bias ? load(w.bias + output, lanes) : nothing();
    for (int64_t i = 0; i < count; ++i) {
        Floats value = plus(total[i], bias);
        const int64_t at = (token + i) * w.n + output;
        if (add) value = plus(value, load16(add, at, lanes, half));
        store16(y, at, lanes, half, value);
    }
}
