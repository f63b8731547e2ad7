// Matrix products of a warp: mma.sync. An operand's rows are of words, each of which holds one tf32,
// two f16 or bf16, or four bytes; lane 4 g + q has words q and q + 4 of row g, and of row g + 8.

enum { OF_F16, OF_BF16, OF_TF32, OF_S8, OF_U8 };
enum { MOST_COLUMNS = 256, MOST_DEPTH = 32 };

static int per_word(int type) { return type == OF_TF32 ? 1 : type <= OF_BF16 ? 2 : 4; }

static void unpacked(float *to, uint32_t bits, int type)
{
    switch (type) {
    case OF_F16: to[0] = from_f16(low(bits)), to[1] = from_f16(high(bits)); break;
    case OF_BF16: to[0] = from_bf16(low(bits)), to[1] = from_bf16(high(bits)); break;
    default: to[0] = as_float(bits & 0xffffe000u);
    }
}
static void unpacked_bytes(int32_t *to, uint32_t bits, int type)
{
    for (int n = 0; n < 4; ++n)
        to[n] = type == OF_S8 ? (int8_t)(bits >> 8 * n) : (uint8_t)(bits >> 8 * n);
}

// d[row][column] = sum of a[row][k] b[k][column]
#define PRODUCTS_OF(NAME, T) \
    static void NAME(T *restrict d, const T *restrict a, const T *restrict b, int rows, \
                     int columns, int depth) \
    { \
        for (int r = 0; r < rows; ++r) { \
            T *restrict row = d + r * columns; \
            for (int c = 0; c < columns; ++c) row[c] = 0; \
            for (int k = 0; k < depth; ++k) { \
                const T x = a[r * depth + k]; \
                const T *restrict y = b + k * columns; \
                for (int c = 0; c < columns; c += 8) \
                    for (int e = 0; e < 8; ++e) row[c + e] += x * y[c + e]; \
            } \
        } \
    }
PRODUCTS_OF(products_f32, float)
PRODUCTS_OF(products_s32, int32_t)

typedef union { float f; int32_t i; } Number;

static void multiply(Machine *m, Warp *w, const Instruction *i, const Operand *o)
{
    // aux: rows, words in a row, type of a, of b, registers of a, of b, sums are f16, they saturate
    const int rows = i->aux[0], words = i->aux[1], a_type = i->aux[2], b_type = i->aux[3];
    const int each = per_word(a_type), depth = words * each, whole = a_type >= OF_S8;
    Number a[16 * 32], b[32 * 8], d[16 * 8], part[4];
    const Operand *left = o + i->results, *right = left + i->aux[4], *sums = right + i->aux[5];
    for (int l = 0; l < LANES; ++l) {
        const int g = l >> 2, q = l & 3;
        for (int n = 0; n < i->aux[4]; ++n) {
            const int row = g + (rows == 16 && n & 1 ? 8 : 0), at = q + (rows == 16 ? n >> 1 : n) * 4;
            if (whole) unpacked_bytes(&part[0].i, word(w, left + n, l), a_type);
            else unpacked(&part[0].f, word(w, left + n, l), a_type);
            for (int e = 0; e < each; ++e) a[row * depth + at * each + e] = part[e];
        }
        for (int n = 0; n < i->aux[5]; ++n) {
            if (whole) unpacked_bytes(&part[0].i, word(w, right + n, l), b_type);
            else unpacked(&part[0].f, word(w, right + n, l), b_type);
            for (int e = 0; e < each; ++e) b[((q + 4 * n) * each + e) * 8 + g] = part[e];
        }
    }
    if (whole) products_s32(&d[0].i, &a[0].i, &b[0].i, rows, 8, depth);
    else products_f32(&d[0].f, &a[0].f, &b[0].f, rows, 8, depth);
    const int count = i->aux[6] ? i->results * 2 : i->results;
    for (int l = 0; l < LANES; ++l)
        for (int n = 0; n < count; ++n) {
            const Number found = d[((l >> 2) + 8 * (n >> 1)) * 8 + 2 * (l & 3) + (n & 1)];
            if (i->aux[6]) {
                uint16_t *to = (uint16_t *)((uint32_t *)lanes(w, o + n / 2) + l) + (n & 1);
                const uint32_t sum = word(w, sums + n / 2, l);
                *to = to_f16(found.f + from_f16(n & 1 ? high(sum) : low(sum)), RN);
            } else if (whole) {
                int64_t sum = (int64_t)found.i + (int32_t)word(w, sums + n, l);
                if (i->aux[7]) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
                ((uint32_t *)lanes(w, o + n))[l] = (uint32_t)sum;
            }
            else ((float *)lanes(w, o + n))[l] = found.f + as_float(word(w, sums + n, l));
        }
}
