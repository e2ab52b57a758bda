// Products of a few rows with bfloat16, 8-bit or 4-bit weights, at the speed of memory (AVX-512 with VNNI and BF16).
//
// 8-bit and 4-bit weights are rounded per output channel and group of input channels, and activations to 8 bits per
// token and group, on the fly. 16 outputs share a register: a block of 16 outputs holds, group by group, 64-byte words
// of 16 outputs x 2 inputs (bfloat16), x 4 (8-bit) or x 8 (4-bit: the low halves are inputs 0-3, the high ones 4-7).
// Within a group the sum is one of integers, hence exact in any order; everything else is added up in float32 in one
// fixed order. So a token's result does not depend on how many tokens share the call.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "simd.h"

constexpr int kBlock = 16;  // outputs per block
constexpr int kTile = 9;    // most tokens that share one reading of a block

// Filled in by product.py, field by field.
struct Linear {
    int64_t bits, n, k, group, groups, blocks, threads;
    int64_t gated;           // the input is [m][2k]: silu of the first half times the second
    const float* norm;       // [k]: the input is normed by its root mean square and scaled by this, or null
    double eps;
    const uint8_t* words;    // [blocks][groups][group * 16 * bits / 8]
    const uint16_t* scales;  // 8-bit and 4-bit: bfloat16 [blocks][groups][16]
    const uint8_t* zeros;    // 4-bit: zero points in 1/16 [blocks][groups][16]
    const float* bias;       // [n] or null
};

namespace {

// The tokens of one call, padded to whole groups.
struct Rows {
    std::vector<uint16_t> halves;  // bfloat16 [m][groups * group], for bfloat16 weights
    std::vector<int8_t> levels;    // the same in 8 bits, otherwise
    std::vector<float> scales;     // [m][groups]
    std::vector<int32_t> sums;     // of levels [m][groups]

    void resize(const Linear& w, int64_t m) {
        if (w.bits == 16) {
            halves.resize(m * w.groups * w.group);
        } else {
            levels.resize(m * w.groups * w.group);
            scales.resize(m * w.groups);
            sums.resize(m * w.groups);
        }
    }
};

// One token's input in float32, normed or gated, zeros after its end.
void read_token(const Linear& w, const void* x, int64_t token, bool half, std::vector<float>& row) {
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

void narrow_token(const Linear& w, const std::vector<float>& row, int64_t token, Rows& out) {
    uint16_t* halves = out.halves.data() + token * w.groups * w.group;
    for (int64_t i = 0; i < w.groups * w.group; i += 16)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(halves + i), narrow(_mm512_loadu_ps(row.data() + i)));
}

void round_token(const Linear& w, const std::vector<float>& row, int64_t token, Rows& out) {
    int8_t* levels = out.levels.data() + token * w.groups * w.group;
    for (int64_t g = 0; g < w.groups; ++g) {
        const float* values = row.data() + g * w.group;
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
        out.scales[token * w.groups + g] = peak / 127.0f + _mm512_reduce_add_ps(damage);
        out.sums[token * w.groups + g] = _mm512_reduce_add_epi32(sum);
    }
}

// Which of how many tiles read a block.
struct Place {
    int64_t tile, tiles;
};

// Weights asked for before their use: `step` bytes further with every word that is used.
struct Ahead {
    const char* next;
    int64_t step;
};

// One tile reads its own block, so it asks for what comes a little later (few tokens wait for memory; many are busy, and
// must ask further ahead). Two tiles read a block one after the other: each asks for half of the next block, so that
// memory is busy all the time. With more of them arithmetic takes longer than reading.
template <int BITS, int MT>
Ahead plan_ahead(const uint8_t* words, int64_t block_bytes, int64_t tile, int64_t tiles) {
    const char* here = reinterpret_cast<const char*>(words);
    if (tiles == 2) return {here + block_bytes + tile * block_bytes / 2, 32};
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

__m512i four(const void* bytes) {
    int32_t value;
    std::memcpy(&value, bytes, 4);
    return _mm512_set1_epi32(value);
}

// One block of 16 outputs for MT tokens from `token` on.
template <int BITS, int MT>
void times_tile(const Linear& w, int64_t block, const Rows& x, int64_t token, Place place, __m512* total) {
    const int64_t stride = w.groups * w.group, first = token * w.groups;
    const int64_t size = stride * kBlock * BITS / 8;
    const uint8_t* words = w.words + block * size;
    Ahead ahead = plan_ahead<BITS, MT>(words, size, place.tile, place.tiles);
    const int8_t* row = x.levels.data() + token * stride;
    const __m512i low = _mm512_set1_epi8(15);
    for (int m = 0; m < MT; ++m) total[m] = _mm512_setzero_ps();
    for (int64_t g = 0; g < w.groups; ++g, row += w.group) {
        __m512i dot[MT];
        for (int m = 0; m < MT; ++m)
            dot[m] = BITS == 8 ? _mm512_set1_epi32(-128 * x.sums[first + m * w.groups + g]) : _mm512_setzero_si512();
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
        const __m512 scale = load16(w.scales, at, kAll, true);
        __m512 zero = _mm512_setzero_ps();
        if constexpr (BITS == 4) {
            const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.zeros + at));
            zero = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(raw)), _mm512_set1_ps(1.0f / 16));
        }
        for (int m = 0; m < MT; ++m) {
            const int64_t here = first + m * w.groups + g;
            __m512 value = _mm512_cvtepi32_ps(dot[m]);
            if constexpr (BITS == 4)
                value = _mm512_fnmadd_ps(zero, _mm512_set1_ps(static_cast<float>(x.sums[here])), value);
            total[m] = _mm512_fmadd_ps(value, _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[here])), total[m]);
        }
    }
}

// The same for bfloat16 weights, with two sums per output to hide their latency.
template <int MT>
void times_tile16(const Linear& w, int64_t block, const Rows& x, int64_t token, Place place, __m512* total) {
    const int64_t stride = w.groups * w.group;
    const int64_t size = stride * kBlock * 2;
    const uint8_t* words = w.words + block * size;
    Ahead ahead = plan_ahead<16, MT>(words, size, place.tile, place.tiles);
    const uint16_t* row = x.halves.data() + token * stride;
    __m512 sums[MT][2];
    for (int m = 0; m < MT; ++m) sums[m][0] = sums[m][1] = _mm512_setzero_ps();
    for (int64_t i = 0; i < stride; i += 4) {
        for (int part = 0; part < 2; ++part, words += 64) {
            const __m512bh word = (__m512bh)_mm512_load_si512(words);
            ask<16, MT>(ahead);
            for (int m = 0; m < MT; ++m)
                sums[m][part] = _mm512_dpbf16_ps(sums[m][part], word, (__m512bh)four(row + m * stride + i + 2 * part));
        }
    }
    for (int m = 0; m < MT; ++m) total[m] = _mm512_add_ps(sums[m][0], sums[m][1]);
}

template <int MT>
void times_tile(const Linear& w, int64_t block, const Rows& x, int64_t token, Place place, __m512* total) {
    if (w.bits == 16) return times_tile16<MT>(w, block, x, token, place, total);
    if (w.bits == 8) return times_tile<8, MT>(w, block, x, token, place, total);
    return times_tile<4, MT>(w, block, x, token, place, total);
}

void times_tile(const Linear& w, int64_t block, const Rows& x, int64_t token, int64_t count, Place place,
                __m512* total) {
    switch (count) {
        case 1: return times_tile<1>(w, block, x, token, place, total);
        case 2: return times_tile<2>(w, block, x, token, place, total);
        case 3: return times_tile<3>(w, block, x, token, place, total);
        case 4: return times_tile<4>(w, block, x, token, place, total);
        case 5: return times_tile<5>(w, block, x, token, place, total);
        case 6: return times_tile<6>(w, block, x, token, place, total);
        case 7: return times_tile<7>(w, block, x, token, place, total);
        case 8: return times_tile<8>(w, block, x, token, place, total);
        default: return times_tile<9>(w, block, x, token, place, total);
    }
}

// One group of one output channel: its levels (0 to 255 or 0 to 15), scale and zero point.
void round_weights(const void* data, int64_t index, int64_t width, bool half, int bits, uint8_t* levels, uint16_t& scale,
                   uint8_t& zero) {
    float low = 0, high = 0, damage = 0, values[64];
    for (int64_t i = 0; i < width; ++i) {
        values[i] = half ? from_bf16(static_cast<const uint16_t*>(data)[index + i]) : static_cast<const float*>(data)[index + i];
        damage += values[i] * 0;  // NaN if a weight is not finite
        low = std::min(low, values[i]);
        high = std::max(high, values[i]);
    }
    const float reach = bits == 8 ? std::max(high, -low) / 127 : (high - low) / 15;
    scale = to_bf16(std::max(reach * 1.004f, 1e-30f));  // rounded down it would still reach the largest weight
    const float step = from_bf16(scale);
    if (damage != 0) {  // NaN: so is every result of this channel
        scale = 0x7fc0, zero = 0;
        std::fill(levels, levels + 64, 0);
        return;
    }
    zero = bits == 8 ? 0 : static_cast<uint8_t>(std::lround(std::clamp(-low / step, 0.0f, 15.0f) * 16));
    const float middle = bits == 8 ? 128.0f : zero / 16.0f;
    for (int64_t i = 0; i < width; ++i)
        levels[i] = static_cast<uint8_t>(std::clamp(std::nearbyint(values[i] / step + middle), 0.0f, bits == 8 ? 255.0f : 15.0f));
    std::fill(levels + width, levels + 64, bits == 8 ? 128 : 0);
}

}  // namespace

extern "C" {

// Weights [n, k] (bfloat16 if half, else float32), rounded and laid out as in Linear.
void draftproof_pack(const void* data, int half, int bits, int64_t n, int64_t k, int64_t group, uint8_t* words,
                     uint16_t* scales, uint8_t* zeros) {
    const int64_t groups = (k + group - 1) / group, blocks = (n + kBlock - 1) / kBlock, size = group * kBlock * bits / 8;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t g = 0; g < groups; ++g) {
            uint8_t* out = words + (block * groups + g) * size;
            std::memset(out, 0, size);
            for (int64_t lane = 0; lane < kBlock; ++lane) {
                const int64_t channel = block * kBlock + lane, at = (block * groups + g) * kBlock + lane;
                const int64_t begin = channel * k + g * group, width = channel < n ? std::min(group, k - g * group) : 0;
                uint16_t halves[64] = {}, scale = 0;
                uint8_t levels[64] = {}, zero = 0;
                if (bits == 16)
                    std::copy_n(static_cast<const uint16_t*>(data) + begin, width, halves);
                else if (width)
                    round_weights(data, begin, width, half, bits, levels, scale, zero);
                if (scales) scales[at] = scale;
                if (zeros) zeros[at] = zero;
                for (int64_t i = 0; i < group; ++i) {
                    if (bits == 16)
                        std::memcpy(out + i / 2 * 64 + lane * 4 + i % 2 * 2, halves + i, 2);
                    else if (bits == 8)
                        out[i / 4 * 64 + lane * 4 + i % 4] = levels[i];
                    else
                        out[i / 8 * 64 + lane * 4 + i % 4] |= levels[i] << (i % 8 < 4 ? 0 : 4);
                }
            }
        }
    }
}

// y = f(x) W^T + bias + add: x [m][k] (or [m][2k]), add [m][n] or null, y [m][n], all bfloat16 if half, else float32.
void draftproof_product(const Linear* linear, const void* x, int64_t m, int half, const void* add, void* y) {
    const Linear& w = *linear;
    static thread_local Rows own;
    own.resize(w, m);
    Rows& rows = own;  // of the calling thread, for all
    const int64_t tiles = (m + kTile - 1) / kTile, share = (m + tiles - 1) / tiles;  // tiles of equal size
#pragma omp parallel num_threads(w.threads)
    {
        std::vector<float> row;
#pragma omp for schedule(static)
        for (int64_t token = 0; token < m; ++token) {
            read_token(w, x, token, half, row);
            if (w.bits == 16)
                narrow_token(w, row, token, rows);
            else
                round_token(w, row, token, rows);
        }
#pragma omp for schedule(static)
        for (int64_t block = 0; block < w.blocks; ++block) {
            const int64_t output = block * kBlock;
            const __mmask16 mask = first_lanes(w.n - output);
            const __m512 bias = w.bias ? _mm512_maskz_loadu_ps(mask, w.bias + output) : _mm512_setzero_ps();
            for (int64_t token = 0; token < m; token += share) {
                __m512 total[kTile];
                const int64_t count = std::min(share, m - token);
                times_tile(w, block, rows, token, count, {token / share, tiles}, total);
                for (int64_t i = 0; i < count; ++i) {
                    __m512 value = _mm512_add_ps(total[i], bias);
                    const int64_t at = (token + i) * w.n + output;
                    if (add) value = _mm512_add_ps(value, load16(add, at, mask, half));
                    store16(y, at, mask, half, value);
                }
            }
        }
    }
}
}
