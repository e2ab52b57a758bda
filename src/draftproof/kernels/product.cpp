// Products of a few rows with bfloat16, 8-bit or 4-bit weights, at the speed of memory.
//
// 8-bit and 4-bit weights are rounded per output channel and group of input channels, and activations to 8 bits per
// token and group, on the fly. 16 outputs share a register: a block of 16 outputs holds, group by group, 64-byte words
// of 16 outputs x 2 inputs (bfloat16), x 4 (8-bit) or x 8 (4-bit: the low halves are inputs 0-3, the high ones 4-7).
// Within a group the sum is one of integers, hence exact in any order; everything else is added up in float32 in one
// fixed order. So a token's result does not depend on how many tokens share the call.

#include <omp.h>

#include "tiles.h"
#ifdef __AVX512BF16__
#include "vectors512.h"
#else
#include "vectors256.h"
#endif

extern "C" {

// Whether the matrix unit can be used.
int draftproof_tiles() { return tiles::allowed(); }

// y = f(x) W^T + bias + add: x [m][k] (or [m][2k]), add [m][n] or null, y [m][n], all bfloat16 if half, else float32.
void draftproof_product(const Linear* linear, const void* x, int64_t m, int half, const void* add, void* y) {
    const Linear& w = *linear;
    static thread_local Rows own;
    own.resize(w, m);
    Rows& rows = own;  // of the calling thread, for all
    const int64_t limit = share_limit(w.bits), shares = (m + limit - 1) / limit;
    const int64_t share = (m + shares - 1) / shares;  // of equal size
#pragma omp parallel num_threads(w.threads)
    {
        std::vector<float> row;
#pragma omp for schedule(static)
        for (int64_t token = 0; token < m; ++token) {
            read_token(w, x, token, half, row);
            if (w.bits == 16)
                narrow_token(row, token, rows);
            else
                round_token(w, row, token, rows);
        }
        if (rows.tiled) {
            times_tiles(w, rows, m, half, add, y);
        } else {
#pragma omp for schedule(static)
            for (int64_t block = 0; block < w.blocks; ++block) {
                for (int64_t token = 0; token < m; token += share) {
                    Floats total[kShare];
                    const int64_t count = std::min(share, m - token);
                    times_share(w, block, rows, token, count, {token / share, shares}, total);
                    finish(w, block, total, token, count, half, add, y);
                }
            }
        }
    }
}
}
