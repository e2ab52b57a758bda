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

__m512 part(const Attention& a, const void* data, int64_t index, int64_t i) {
    return load16(data, index + 16 * i, first_lanes(a.width - 16 * i), a.half);
}

// Norm and rotation of one head, in float32: x * cos + swapped(x) * sin, the halves of x swapped, signs in sin.
void rotate(const Attention& a, const void* qkv, int64_t index, int64_t head, const float* cos, const float* sin, float* out) {
    float x[16 * kMaxParts];
    const int64_t half = a.width / 2;
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; 16 * i < a.width; ++i) {
        const __m512 value = part(a, qkv, index, i);
        squares = _mm512_fmadd_ps(value, value, squares);
        _mm512_storeu_ps(x + 16 * i, value);
    }
    if (a.head_scale) {
        const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(a.width);
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
        const __mmask16 mask = first_lanes(a.width - 16 * i);
        store16(data, index + 16 * i, mask, a.half, _mm512_maskz_loadu_ps(mask, from + 16 * i));
    }
}

// Sums of 16 registers, each in the same order: lane i of the result is the sum of x[i].
__m512 sums(__m512* x) {
    __m512 quads[4];
    for (int i = 0; i < 4; ++i) {
        __m512 pairs[2];
        for (int j = 0; j < 2; ++j) {
            const __m512 a = x[4 * i + 2 * j], b = x[4 * i + 2 * j + 1];
            pairs[j] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        }
        const __m512d a = _mm512_castps_pd(pairs[0]), b = _mm512_castps_pd(pairs[1]);
        quads[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    __m512 halves[2];
    for (int i = 0; i < 2; ++i)
        halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0x88),
                                  _mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88), _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}

// Products of the query (its parts in registers) with one key, not yet summed over the 16 lanes.
template <bool HALF, int WIDTH>
__m512 times_key(const Attention& a, const __m512* query, const void* keys, int64_t index) {
    const int64_t width = WIDTH ? WIDTH : a.width;
    __m512 sum = _mm512_setzero_ps();
    if constexpr (HALF) {  // 32 bfloat16 numbers a register
        const uint16_t* key = static_cast<const uint16_t*>(keys) + index;
        for (int64_t i = 0; 32 * i < width; ++i) {
            const int64_t left = width - 32 * i;
            const __mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
            sum = _mm512_dpbf16_ps(sum, (__m512bh)query[i], (__m512bh)_mm512_maskz_loadu_epi16(mask, key + 32 * i));
        }
    } else {
        for (int64_t i = 0; 16 * i < width; ++i)
            sum = _mm512_fmadd_ps(query[i], load16(keys, index + 16 * i, first_lanes(width - 16 * i), false), sum);
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
    __m512 q[kMaxParts];
    if constexpr (HALF) {
        const uint16_t* from = static_cast<const uint16_t*>(query) + query_index;
        for (int64_t i = 0; 32 * i < width; ++i) {
            const int64_t left = width - 32 * i;
            const __mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
            q[i] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, from + 32 * i));
        }
    } else {
        for (int64_t i = 0; i < parts; ++i) q[i] = part(a, query, query_index, i);
    }
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(static_cast<float>(width)));
    __m512 highest = _mm512_set1_ps(-INFINITY);
    for (int64_t i = 0; i < padded; i += 16) {
        __m512 products[16];
        for (int64_t j = 0; j < 16; ++j) products[j] = times_key<HALF, WIDTH>(a, q, layer.keys, index(std::min(i + j, count - 1)));
        const __m512 scores = _mm512_mul_ps(sums(products), scale);
        highest = _mm512_mask_max_ps(highest, first_lanes(count - i), highest, scores);
        _mm512_storeu_ps(weights.data() + i, scores);
    }
    const __m512 peak = _mm512_set1_ps(_mm512_reduce_max_ps(highest));
    __m512 total = _mm512_setzero_ps();
    for (int64_t i = 0; i < padded; i += 16) {
        const __m512 score = _mm512_loadu_ps(weights.data() + i);
        const __m512 weight = _mm512_maskz_mov_ps(first_lanes(count - i), exp16(_mm512_sub_ps(score, peak)));
        total = _mm512_add_ps(total, weight);
        _mm512_storeu_ps(weights.data() + i, weight);
    }
    const __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(total));
    __m512 mixed[kMaxParts];
    for (int64_t i = 0; i < parts; ++i) mixed[i] = _mm512_setzero_ps();
    for (int64_t i = 0; i < count; ++i) {
        const __m512 weight = _mm512_set1_ps(weights[i]);
        for (int64_t j = 0; j < parts; ++j) {
            const __m512 value = load16(layer.values, index(i) + 16 * j, first_lanes(width - 16 * j), HALF);
            mixed[j] = _mm512_fmadd_ps(weight, value, mixed[j]);
        }
    }
    for (int64_t i = 0; i < parts; ++i)
        store16(out, out_index + 16 * i, first_lanes(width - 16 * i), HALF, _mm512_mul_ps(mixed[i], share));
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
