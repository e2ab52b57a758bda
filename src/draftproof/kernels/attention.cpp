// Attention of a few queries over cached keys and values: rotation, cache update and softmax in one call.
//
// A query sees the slots before its block and its ancestors within it, taken in the order of their positions. Each score
// is a sum over the head's width in one fixed order, and everything over the slots goes by a slot's place in that
// sequence. So a token's result does not depend on what shares the call, nor on where in a tree of guesses it stands.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "simd.h"

constexpr int kMaxParts = 16;  // registers for one head: a width of up to 256

// Filled in by attention.py, field by field. `half`: q, k, v, cache and result are bfloat16, else float32.
struct Attention {
    int64_t half, heads, kv_heads, width, threads;
    const float* head_scale;  // [heads + kv_heads][width]: norms of queries and keys (Qwen3), or null
    double eps;
};

// One token of a pass, filled in by attention.py.
struct Token {
    int64_t row;          // where its row begins in a layer's keys and values [rows][kv_heads][capacity][width]
    int64_t slot;         // its own
    int64_t start;        // it sees all slots before this
    int64_t first_extra;  // and some more of its row
    int64_t num_extra;
};

// One layer's keys and values; the slots of one head are `stride` numbers.
struct Layer {
    char* keys;
    char* values;
    int64_t stride;
    const int32_t* extras;
};

namespace {

Floats part(const Attention& a, const void* data, int64_t index, int64_t i) {
    return load16(data, index + 16 * i, first_lanes(a.width - 16 * i), a.half);
}

// Norm and rotation of one head, in float32: x * cos + swapped(x) * sin, the halves of x swapped, signs in sin.
void rotate(const Attention& a, const void* qkv, int64_t index, int64_t head, const float* cos, const float* sin, float* out) {
    float x[16 * kMaxParts];
    const int64_t half = a.width / 2;
    Floats squares = nothing();
    for (int64_t i = 0; 16 * i < a.width; ++i) {
        const Floats value = part(a, qkv, index, i);
        squares = times_plus(value, value, squares);
        store(x + 16 * i, value);
    }
    if (a.head_scale) {
        const float mean = sum_of(squares) / static_cast<float>(a.width);
        const float scale = 1.0f / std::sqrt(mean + static_cast<float>(a.eps));
        for (int64_t i = 0; i < a.width; ++i) x[i] *= scale * a.head_scale[head * a.width + i];
    }
    for (int64_t i = 0; i < half; ++i) {
        out[i] = std::fma(x[i + half], sin[i], x[i] * cos[i]);
        out[i + half] = std::fma(x[i], sin[i + half], x[i + half] * cos[i + half]);
    }
}

void put(const Attention& a, void* data, int64_t index, const float* from) {
    for (int64_t i = 0; 16 * i < a.width; ++i) {
        const Lanes lanes = first_lanes(a.width - 16 * i);
        store16(data, index + 16 * i, lanes, a.half, load(from + 16 * i, lanes));
    }
}

template <bool HALF>
struct Query {
    using Part = Floats;
};

template <>
struct Query<true> {
    using Part = Packed;
};

// Products of the query (its parts in registers) with one key, not yet summed over the 16 lanes.
template <bool HALF, int WIDTH, class Part>
Floats times_key(const Attention& a, const Part* query, const void* keys, int64_t index) {
    const int64_t width = WIDTH ? WIDTH : a.width;
    Floats sum = nothing();
    if constexpr (HALF) {
        const uint16_t* key = static_cast<const uint16_t*>(keys) + index;
        for (int64_t i = 0; kPacked * i < width; ++i)
            sum = times_plus(query[i], load_packed(key + kPacked * i, width - kPacked * i), sum);
    } else {
        for (int64_t i = 0; 16 * i < width; ++i)
            sum = times_plus(query[i], load16(keys, index + 16 * i, first_lanes(width - 16 * i), false), sum);
    }
    return sum;
}

// WIDTH: the head's width where the compiler knows it, 0 for any other.
template <bool HALF, int WIDTH>
void attend(const Attention& a, const Layer& layer, const Token& token, int64_t head, const void* query, int64_t query_index, void* out,
            int64_t out_index, std::vector<float>& weights) {
    const int64_t width = WIDTH ? WIDTH : a.width, parts = (width + 15) / 16;
    const int64_t kv = head / (a.heads / a.kv_heads), count = token.start + token.num_extra;
    const int64_t padded = (count + 15) / 16 * 16;
    weights.resize(padded);
    const auto index = [&](int64_t i) {
        const int64_t slot = i < token.start ? i : layer.extras[token.first_extra + i - token.start];
        return token.row + kv * layer.stride + slot * width;
    };
    typename Query<HALF>::Part q[kMaxParts];
    if constexpr (HALF) {
        const uint16_t* from = static_cast<const uint16_t*>(query) + query_index;
        for (int64_t i = 0; kPacked * i < width; ++i) q[i] = load_packed(from + kPacked * i, width - kPacked * i);
    } else {
        for (int64_t i = 0; i < parts; ++i) q[i] = part(a, query, query_index, i);
    }
    const Floats scale = all(1.0f / std::sqrt(static_cast<float>(width)));
    Floats highest = all(-INFINITY);
    for (int64_t i = 0; i < padded; i += 16) {
        Floats products[16];
        for (int64_t j = 0; j < 16; ++j) products[j] = times_key<HALF, WIDTH>(a, q, layer.keys, index(std::min(i + j, count - 1)));
        const Floats scores = times(totals(products), scale);
        highest = choose(first_lanes(count - i), higher(highest, scores), highest);
        store(weights.data() + i, scores);
    }
    const Floats peak = all(highest_of(highest));
    Floats total = nothing();
    for (int64_t i = 0; i < padded; i += 16) {
        const Floats score = load(weights.data() + i);
        const Floats weight = only(first_lanes(count - i), exp16(minus(score, peak)));
        total = plus(total, weight);
        store(weights.data() + i, weight);
    }
    const Floats share = all(1.0f / sum_of(total));
    Floats mixed[kMaxParts];
    for (int64_t i = 0; i < parts; ++i) mixed[i] = nothing();
    for (int64_t i = 0; i < count; ++i) {
        const Floats weight = all(weights[i]);
        for (int64_t j = 0; j < parts; ++j) {
            const Floats value = load16(layer.values, index(i) + 16 * j, first_lanes(width - 16 * j), HALF);
            mixed[j] = times_plus(weight, value, mixed[j]);
        }
    }
    for (int64_t i = 0; i < parts; ++i)
        store16(out, out_index + 16 * i, first_lanes(width - 16 * i), HALF, times(mixed[i], share));
}

template <bool HALF>
auto attend(int64_t width) {
    return width == 64 ? attend<HALF, 64> : width == 128 ? attend<HALF, 128> : attend<HALF, 0>;
}

}  // namespace

extern "C" {

// qkv [m][heads + 2 kv_heads][width], cos and sin [positions][width] float32, positions [m], queries (scratch) and out
// [m][heads][width]. Writes the tokens' keys and values into their slots, then mixes.
void draftproof_attend(const Attention* attention, const void* qkv, int64_t m, const float* cos, const float* sin,
                       const int64_t* positions, const Token* tokens, const int32_t* extras, void* keys, void* values,
                       int64_t stride, void* queries, void* out) {
    const Attention& a = *attention;
    const Layer layer{static_cast<char*>(keys), static_cast<char*>(values), stride, extras};
    const int64_t all = a.heads + 2 * a.kv_heads, size = a.half ? 2 : 4;
    const auto mix = a.half ? attend<true>(a.width) : attend<false>(a.width);
#pragma omp parallel num_threads(a.threads)
    {
        std::vector<float> weights;
#pragma omp for schedule(static)
        for (int64_t task = 0; task < m * all; ++task) {
            const int64_t t = task / all, head = task % all, from = task * a.width, turn = positions[t] * a.width;
            const int64_t slot = tokens[t].row + tokens[t].slot * a.width, kv = head - a.heads;
            float x[16 * kMaxParts];
            if (kv < a.kv_heads) rotate(a, qkv, from, head, cos + turn, sin + turn, x);
            if (kv < 0)
                put(a, queries, (t * a.heads + head) * a.width, x);
            else if (kv < a.kv_heads)
                put(a, layer.keys, slot + kv * stride, x);
            else
                std::memcpy(layer.values + (slot + (kv - a.kv_heads) * stride) * size,
                            static_cast<const char*>(qkv) + from * size, a.width * size);
        }
#pragma omp for schedule(static)
        for (int64_t task = 0; task < m * a.heads; ++task) {
            const int64_t at = task * a.width;
            mix(a, layer, tokens[task / a.heads], task % a.heads, queries, at, out, at, weights);
        }
    }
}
}
