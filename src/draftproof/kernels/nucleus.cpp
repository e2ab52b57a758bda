// Top-k, top-p and min-p of rows of logits: the few tokens that are left, sorted, and their law.
//
// A row is read twice: for its highest value, then for the mass that top-p is a share of. Candidates come from the
// chunks that reach to within some distance of the highest, a distance that grows until the last candidate is out.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <omp.h>

#include "simd.h"

namespace {

constexpr int64_t kChunk = 256;
constexpr float kDistances[] = {6, 9, 12, 15, 18, 22, 26, 30, 40, std::numeric_limits<float>::infinity()};

struct Settings {
    int64_t half, vocab;
    float temperature;  // at least the smallest normal number
    int64_t top_k;      // vocab and more: off
    double top_p, min_p;  // 1 and 0: off
};

using Candidate = std::pair<float, int64_t>;  // scaled logit, id

// The row's highest value, and that of each chunk; NaN if there is one.
float peaks(const Settings& s, const void* row, std::vector<float>& chunks) {
    unsigned strange = 0;
    float top = -std::numeric_limits<float>::infinity();
    const Floats least = all(top);
    for (int64_t begin = 0; begin < s.vocab; begin += kChunk) {
        Floats high = least;
        for (int64_t i = begin; i < std::min(begin + kChunk, s.vocab); i += 16) {
            const Lanes lanes = first_lanes(s.vocab - i);
            const Floats x = choose(lanes, load16(row, i, lanes, s.half), least);
            strange |= not_numbers(x);
            high = higher(high, x);
        }
        chunks[begin / kChunk] = highest_of(high);
        top = std::max(top, chunks[begin / kChunk]);
    }
    return strange ? std::numeric_limits<float>::quiet_NaN() : top;
}

Floats scaled(const Settings& s, const void* row, int64_t i, Lanes lanes, float top) {
    const Floats x = minus(load16(row, i, lanes, s.half), all(top));
    return s.temperature == 1.0f ? x : over(x, all(s.temperature));
}

double total(const Settings& s, const void* row, float top) {
    double sum = 0;
    for (int64_t begin = 0; begin < s.vocab; begin += 64 * kChunk) {
        Floats part = nothing();
        for (int64_t i = begin; i < std::min(begin + 64 * kChunk, s.vocab); i += 16) {
            const Lanes lanes = first_lanes(s.vocab - i);
            part = choose(lanes, plus(part, exp16(scaled(s, row, i, lanes, top))), part);
        }
        sum += sum_of(part);
    }
    return sum;
}

void collect(const Settings& s, const void* row, float top, const std::vector<float>& chunks, float distance,
             std::vector<Candidate>& found) {
    found.clear();
    const Floats border = all(-distance);
    for (int64_t begin = 0; begin < s.vocab; begin += kChunk) {
        if ((chunks[begin / kChunk] - top) / s.temperature < -distance) continue;
        for (int64_t i = begin; i < std::min(begin + kChunk, s.vocab); i += 16) {
            const Lanes lanes = first_lanes(s.vocab - i);
            const Floats x = scaled(s, row, i, lanes, top);
            unsigned in = at_least(lanes, x, border);
            if (!in) continue;
            alignas(64) float numbers[16];
            store(numbers, x);
            for (; in; in &= in - 1) found.emplace_back(numbers[__builtin_ctz(in)], i + __builtin_ctz(in));
        }
    }
    std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
    });
}

// How many of the sorted candidates stay; equal values share their fate. -1: these are too few to tell.
int64_t kept(const Settings& s, const std::vector<Candidate>& found, double mass) {
    const int64_t num = static_cast<int64_t>(found.size());
    const bool all = num == s.vocab;
    int64_t count = num;
    if (s.top_k < s.vocab) {
        if (num < s.top_k) return all ? num : -1;
        count = s.top_k;
        while (count < num && found[count].first == found[s.top_k - 1].first) ++count;
        mass = 0;
        for (int64_t i = 0; i < count; ++i) mass += std::exp(found[i].first);
    }
    if (s.top_p < 1) {
        double before = 0;
        int64_t inside = 0;
        while (inside < count && (inside == 0 || before < s.top_p * mass)) before += std::exp(found[inside++].first);
        while (inside < count && found[inside].first == found[inside - 1].first) ++inside;
        count = inside;
    }
    if (s.min_p > 0)
        while (count > 0 && std::exp(found[count - 1].first) < static_cast<float>(s.min_p)) --count;
    return count == num && !all ? -1 : count;
}

}  // namespace

extern "C" {

// rows x vocab logits to laws of at most `width` tokens a row, sorted, zeros behind them; counts [rows] are how many
// tokens each row keeps, more than `width` if there was no room for them, -1 if the row has no finite highest value.
void draftproof_nucleus(const Settings* settings, const void* logits, int64_t rows, int64_t width, float* values,
                        int64_t* ids, int64_t* counts, int64_t threads) {
    const Settings s = *settings;
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (rows > 1)
    for (int64_t r = 0; r < rows; ++r) {
        const void* row = static_cast<const char*>(logits) + r * s.vocab * (s.half ? 2 : 4);
        std::vector<float> chunks((s.vocab + kChunk - 1) / kChunk);
        const float top = peaks(s, row, chunks);
        counts[r] = -1;
        if (!std::isfinite(top)) continue;
        const double mass = s.top_p < 1 && s.top_k >= s.vocab ? total(s, row, top) : 0;
        std::vector<Candidate> found;
        for (const float distance : kDistances) {
            collect(s, row, top, chunks, distance, found);
            counts[r] = kept(s, found, mass);
            if (counts[r] >= 0) break;
        }
        double sum = 0;
        for (int64_t i = 0; i < counts[r]; ++i) sum += std::exp(found[i].first);
        for (int64_t i = 0; i < width; ++i) {
            const bool in = i < counts[r];
            values[r * width + i] = in ? static_cast<float>(std::exp(found[i].first) / sum) : 0.0f;
            ids[r * width + i] = in ? found[i].second : 0;
        }
    }
}
}
