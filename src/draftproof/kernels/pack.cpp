// Rounds a layer's weights and lays them out as products read them.

#include <omp.h>

#include "rows.h"

namespace {

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
                if (bits == 16) {
                    for (int64_t i = 0; i < group; i += 2) std::memcpy(out + i * 32 + lane * 4, halves + i, 4);
                } else if (bits == 8) {
                    for (int64_t i = 0; i < group; ++i) out[i / 4 * 64 + lane * 4 + i % 4] = levels[i];
                } else {
                    for (int64_t i = 0; i < group; ++i)
                        out[i / 8 * 64 + lane * 4 + i % 4] |= levels[i] << (i % 8 < 4 ? 0 : 4);
                }
            }
        }
    }
}
}
