// Products of 16 tokens and 16 outputs at a time by the CPU's matrix unit (AMX), for product.cpp.
//
// A tile of weights is 1024 bytes of a block of 16 outputs as they lie in memory; a tile of activations holds the same
// inputs of up to 16 tokens. bfloat16: each product of tiles adds up 32 inputs by the unit's own fixed rule, and these are
// added up in order. 8-bit and 4-bit: a product of tiles is a group's sum of integers, hence the bits are those of
// any other way to add them.

#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include "rows.h"

#if defined(__AVX512BF16__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define DRAFTPROOF_TILES 1
#define TILED __attribute__((target("amx-tile,amx-bf16,amx-int8")))
#else
#define DRAFTPROOF_TILES 0
#define TILED
#endif

namespace tiles {

// Whether the system lets this process use the unit.
inline bool allowed() {
#if DRAFTPROOF_TILES
    constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
    return false;
#endif
}

#if DRAFTPROOF_TILES

// Compilers do not know that the unit's instructions read memory: what was stored there must be there.
inline void written(const void* where) { asm volatile("" : : "r"(where) : "memory"); }

struct alignas(64) Config {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t width[16] = {};  // bytes of a row
    uint8_t rows[16] = {};
};

// Tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights. `tokens` of 16 are used; `bytes` of activations each.
TILED inline void begin(int tokens, int bytes) {
    Config config;
    for (int i = 0; i < 8; ++i) {
        config.width[i] = i == 4 || i == 5 ? bytes : 64;
        config.rows[i] = i < 6 ? tokens : bytes / 4;
    }
    written(&config);
    _tile_loadconfig(&config);
}

TILED inline void end() { _tile_release(); }

// Bytes to ask for before they are needed: `lines` of 64 with each tile of weights.
struct Ahead {
    const char* next;
    int lines;

    void ask() {
        for (int i = 0; i < lines; ++i, next += 64) _mm_prefetch(next, _MM_HINT_T0);
    }
};

// BLOCKS blocks of outputs, `size` bytes each, for HALVES times 16 tokens, `steps` tiles deep.
// x [HALVES][steps][16][32], out [HALVES][BLOCKS][16][16].
template <int BLOCKS, int HALVES>
TILED void halves(const uint8_t* words, int64_t size, const uint16_t* x, int64_t steps, Ahead* ahead, float* out) {
    written(x);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < steps; ++i, words += 1024, x += 512) {
        _tile_loadd(4, x, 64);
        if constexpr (HALVES == 2) _tile_loadd(5, x + steps * 512, 64);
        _tile_loadd(6, words, 64);
        ahead[0].ask();
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (HALVES == 2) _tile_dpbf16ps(2, 5, 6);
        if constexpr (BLOCKS == 2) {
            _tile_loadd(7, words + size, 64);
            ahead[1].ask();
            _tile_dpbf16ps(1, 4, 7);
            if constexpr (HALVES == 2) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, out, 64);
    if constexpr (BLOCKS == 2) _tile_stored(1, out + 256, 64);
    if constexpr (HALVES == 2) _tile_stored(2, out + BLOCKS * 256, 64);
    if constexpr (HALVES == 2 && BLOCKS == 2) _tile_stored(3, out + 3 * 256, 64);
}

// A group of 4-bit weights, 8 inputs of 16 outputs a word, as 4 inputs a word.
inline void spread(const uint8_t* words, uint8_t* out) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; ++i) {
        const __m512i word = _mm512_load_si512(words + i * 64);
        _mm512_store_si512(out + i * 128, _mm512_and_si512(word, low));
        _mm512_store_si512(out + i * 128 + 64, _mm512_and_si512(_mm512_srli_epi16(word, 4), low));
    }
}

constexpr int kRun = 4;  // groups whose sums are had before the first is used

// COUNT groups of one block for 16 tokens, one after the other: out [COUNT][16][16] integers. x [COUNT][16][64] for 8
// bits, [COUNT][16][32] for 4.
template <int BITS, int COUNT>
TILED void groups(const uint8_t* words, const int8_t* x, int32_t* out) {
    constexpr int kInputs = BITS * 8;  // of a group
    alignas(64) uint8_t spreading[BITS == 4 ? COUNT * 512 : 64];
    if constexpr (BITS == 4) {
        for (int i = 0; i < COUNT; ++i) spread(words + i * 256, spreading + i * 512);
        written(spreading);
        words = spreading;
    }
    constexpr int kWords = kInputs * 16;
    _tile_zero(0);
    _tile_loadd(4, x, kInputs);
    _tile_loadd(6, words, 64);
    _tile_dpbsud(0, 4, 6);
    if constexpr (COUNT > 1) {
        _tile_zero(1);
        _tile_loadd(5, x + kWords, kInputs);
        _tile_loadd(7, words + kWords, 64);
        _tile_dpbsud(1, 5, 7);
        _tile_zero(2);
        _tile_loadd(4, x + 2 * kWords, kInputs);
        _tile_loadd(6, words + 2 * kWords, 64);
        _tile_dpbsud(2, 4, 6);
        _tile_zero(3);
        _tile_loadd(5, x + 3 * kWords, kInputs);
        _tile_loadd(7, words + 3 * kWords, 64);
        _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(0, out, 64);
    if constexpr (COUNT > 1) {
        _tile_stored(1, out + 256, 64);
        _tile_stored(2, out + 512, 64);
        _tile_stored(3, out + 768, 64);
    }
}

#endif

}  // namespace tiles

#if DRAFTPROOF_TILES

// Two blocks of outputs (or the last one) for all tokens, 32 of them at a time. Reading what comes next goes on beside
// the arithmetic: a little later in these blocks where they are gone through once, otherwise a share of the next two.
template <int BLOCKS>
void times_tiles16(const Linear& w, int64_t block, const Rows& x, int64_t m, bool half, const void* add, void* y) {
    const int64_t size = x.pieces * 1024, parts = (m + 31) / 32;
    const uint8_t* words = w.words + block * size;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t token = part * 32;
        const uint16_t* halves = x.halves.data() + x.place(token, 0);
        alignas(64) Floats out[2 * BLOCKS * kTokens];
        tiles::Ahead ahead[BLOCKS];
        for (int b = 0; b < BLOCKS; ++b) {
            const char* here = reinterpret_cast<const char*>(words + b * size);
            if (parts == 1)
                ahead[b] = {here + 6144, 16};
            else
                ahead[b] = {here + BLOCKS * size + part * size / parts, static_cast<int>((16 + parts - 1) / parts)};
        }
        auto* sums = reinterpret_cast<float*>(out);
        if (m - token > kTokens)
            tiles::halves<BLOCKS, 2>(words, size, halves, x.pieces, ahead, sums);
        else
            tiles::halves<BLOCKS, 1>(words, size, halves, x.pieces, ahead, sums);
        for (int64_t h = 0; token + h * kTokens < std::min(m, token + 32); ++h) {
            const int64_t first = token + h * kTokens, count = std::min<int64_t>(kTokens, m - first);
            for (int b = 0; b < BLOCKS; ++b)
                finish(w, block + b, out + (h * BLOCKS + b) * kTokens, first, count, half, add, y);
        }
    }
}

// Adds a group's sums [16][16] to the totals of 16 tokens, whose scales and sums these are.
template <int BITS>
void add_group(const Linear& w, int64_t at, const float* scales, const int32_t* sums, const int32_t* dots,
               Floats* total) {
    const Floats scale = load16(w.scales, at, kAll, true);
    const Floats zero = BITS == 4 ? load_zeros(w, at) : nothing();
#pragma GCC unroll 16
    for (int i = 0; i < kTokens; ++i) {
        __m512i dot = _mm512_load_si512(dots + i * kBlock);
        if constexpr (BITS == 8) dot = _mm512_add_epi32(dot, _mm512_set1_epi32(sums[i]));
        Floats value = _mm512_cvtepi32_ps(dot);
        if constexpr (BITS == 4) value = minus_times(zero, _mm512_cvtepi32_ps(_mm512_set1_epi32(sums[i])), value);
        total[i] = times_plus(value, times(scale, all(scales[i])), total[i]);
    }
}

// One block of 8-bit or 4-bit outputs for all tokens, 16 at a time.
template <int BITS>
void times_tiles(const Linear& w, int64_t block, const Rows& x, int64_t m, bool half, const void* add, void* y) {
    const int64_t width = w.group * kBlock * BITS / 8, size = w.groups * width;
    const int64_t parts = (m + kTokens - 1) / kTokens, lines = width / 64;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t token = part * kTokens, count = std::min<int64_t>(kTokens, m - token);
        const uint8_t* words = w.words + block * size;
        const char* here = reinterpret_cast<const char*>(words);
        tiles::Ahead ahead = {here + 6144, static_cast<int>(lines)};
        if (parts > 1) ahead = {here + size + part * size / parts, static_cast<int>((lines + parts - 1) / parts)};
        Floats total[kTokens];
        for (__m512& one : total) one = nothing();
        for (int64_t begin = 0; begin < w.groups;) {
            alignas(64) int32_t dots[tiles::kRun * kTokens * kBlock];
            const int64_t run = begin + tiles::kRun <= w.groups ? tiles::kRun : 1;
            const int8_t* levels = x.levels.data() + x.place(token, begin);
            if (run > 1)
                tiles::groups<BITS, tiles::kRun>(words, levels, dots);
            else
                tiles::groups<BITS, 1>(words, levels, dots);
            for (int64_t g = begin; g < begin + run; ++g, words += width) {
                const int64_t spot = x.spot(token, g);
                ahead.ask();
                add_group<BITS>(w, (block * w.groups + g) * kBlock, x.scales.data() + spot, x.sums.data() + spot,
                                dots + (g - begin) * kTokens * kBlock, total);
            }
            begin += run;
        }
        finish(w, block, total, token, count, half, add, y);
    }
}

inline void times_tiles(const Linear& w, const Rows& x, int64_t m, bool half, const void* add, void* y) {
    tiles::begin(static_cast<int>(std::min<int64_t>(m, kTokens)), w.bits == 16 ? 64 : static_cast<int>(w.group));
    if (w.bits == 16) {
#pragma omp for schedule(static)
        for (int64_t pair = 0; pair < w.blocks / 2; ++pair) times_tiles16<2>(w, pair * 2, x, m, half, add, y);
#pragma omp single
        if (w.blocks % 2) times_tiles16<1>(w, w.blocks - 1, x, m, half, add, y);
    } else {
#pragma omp for schedule(static)
        for (int64_t block = 0; block < w.blocks; ++block) {
            if (w.bits == 8)
                times_tiles<8>(w, block, x, m, half, add, y);
            else
                times_tiles<4>(w, block, x, m, half, add, y);
        }
    }
    tiles::end();
}

#else

inline void times_tiles(const Linear&, const Rows&, int64_t, bool, const void*, void*) {}

#endif
