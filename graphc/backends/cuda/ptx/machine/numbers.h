// Arithmetic of single lanes that C has no operator for.
#include <fenv.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define RN FE_TONEAREST
#define RZ FE_TOWARDZERO
#define RM FE_DOWNWARD
#define RP FE_UPWARD
typedef __int128 Wide;

#define KEEP(T) \
    T *d = to; \
    if (mask == ~0u) memcpy(d, t, sizeof t); \
    else for (int l = 0; l < 32; ++l) d[l] = mask >> l & 1 ? t[l] : d[l];

typedef void (*Operation)(void *to, const void *const *x, uint32_t mask);

static float as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static uint32_t as_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
static float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static float unit(double x) { return x > 0 ? x < 1 ? (float)x : 1 : 0; }
static Wide clipped(Wide low, Wide x, Wide high) { return x < low ? low : x > high ? high : x; }
static int32_t saturated(int64_t x) { return (int32_t)clipped(INT32_MIN, x, INT32_MAX); }

#define QUOTIENTS(T, C, LEAST) \
    static C divide_##T(C a, C b) \
    { return b == 0 ? (C)-1 : LEAST && b == (C)-1 ? (C)(0 - a) : (C)(a / b); } \
    static C remainder_##T(C a, C b) \
    { return b == 0 ? a : LEAST && b == (C)-1 ? 0 : (C)(a % b); }
QUOTIENTS(u16, uint16_t, 0)
QUOTIENTS(s16, int16_t, 1)
QUOTIENTS(u32, uint32_t, 0)
QUOTIENTS(s32, int32_t, 1)
QUOTIENTS(u64, uint64_t, 0)
QUOTIENTS(s64, int64_t, 1)

// Of two numbers; a NaN is taken for no number, and -0 is less than 0.
#define EXTREMES(T, C) \
    static C least_##T(C a, C b) \
    { return isnan(a) ? b : isnan(b) ? a : a == b ? (signbit(a) ? a : b) : a < b ? a : b; } \
    static C largest_##T(C a, C b) \
    { return isnan(a) ? b : isnan(b) ? a : a == b ? (signbit(a) ? b : a) : a > b ? a : b; }
EXTREMES(f32, float)
EXTREMES(f64, double)

#define WITH_ROUNDING(C, NAME, EXPRESSION) \
    static __attribute__((noinline)) C NAME \
    { volatile C x = a, y = b, z; fesetround(mode); z = EXPRESSION; fesetround(RN); return z; }
WITH_ROUNDING(float, rounded_f32_add(float a, float b, int mode), x + y)
WITH_ROUNDING(float, rounded_f32_sub(float a, float b, int mode), x - y)
WITH_ROUNDING(float, rounded_f32_mul(float a, float b, int mode), x * y)
WITH_ROUNDING(float, rounded_f32_fma(float a, float b, float c, int mode), fmaf(x, y, c))
WITH_ROUNDING(double, rounded_f64_add(double a, double b, int mode), x + y)
WITH_ROUNDING(double, rounded_f64_sub(double a, double b, int mode), x - y)
WITH_ROUNDING(double, rounded_f64_mul(double a, double b, int mode), x * y)
WITH_ROUNDING(double, rounded_f64_div(double a, double b, int mode), x / y)
WITH_ROUNDING(double, rounded_f64_fma(double a, double b, double c, int mode), fma(x, y, c))

static double integral(double x, int mode)
{ return mode == RN ? nearbyint(x) : mode == RZ ? trunc(x) : mode == RM ? floor(x) : ceil(x); }

// A number as an integer that is clipped to its type; a NaN is 0, or of 64 bits the lowest bit set
// in the sign.
static Wide whole(double x, int mode, Wide low, Wide high, int bits)
{
    if (isnan(x)) return bits == 64 ? (Wide)1 << 63 : 0;
    x = integral(x, mode);
    return x <= (double)low ? low : x >= (double)high ? high : (Wide)x;
}

static float to_f32(double x, int mode)
{
    float nearest = (float)x;
    if (mode == RN || isnan(x) || nearest == x) return nearest;
    const int down = mode == RM || (mode == RZ && x > 0);
    if (down && nearest > x) return nextafterf(nearest, -INFINITY);
    if (!down && nearest < x) return nextafterf(nearest, INFINITY);
    return nearest;
}
static double to_f64(double x, int mode) { (void)mode; return x; }

// A number of so many bits of fraction, the least exponent given: exact scaling, then an integer.
static double narrowed(double x, int digits, int least, double most, int mode)
{
    if (x == 0 || isnan(x) || isinf(x)) return x;
    int exponent;
    frexp(x, &exponent);
    const int unit = (exponent < least ? least : exponent) - digits;
    const double found = ldexp(integral(ldexp(x, -unit),
        mode == RZ ? RZ : mode), unit);
    if (fabs(found) <= most) return found;
    const int inward = mode == RZ || (mode == RM && x > 0) || (mode == RP && x < 0);
    return inward ? copysign(most, x) : copysign(INFINITY, x);
}

static uint16_t to_f16(double value, int mode)
{
    if (isnan(value)) return 0x7fff;
#ifdef __FLT16_MAX__
    if (mode == RN && (float)value == value) {  // the usual way, and quick
        const _Float16 nearest = (_Float16)(float)value;
        uint16_t found;
        memcpy(&found, &nearest, 2);
        return found;
    }
#endif
    const double x = narrowed(value, 11, -13, 65504, mode);
    const uint16_t sign = signbit(x) || (x == 0 && signbit(value)) ? 0x8000 : 0;
    if (isinf(x)) return sign | 0x7c00;
    int exponent;
    const double fraction = frexp(fabs(x), &exponent);
    if (x == 0) return sign;
    if (exponent < -13) return sign | (uint16_t)ldexp(fabs(x), 24);
    return sign | (uint16_t)((exponent + 14) << 10) | (uint16_t)((int)(fraction * 2048) & 1023);
}

static uint16_t to_bf16(double value, int mode)
{
    if (isnan(value)) return 0x7fff;
    if (mode == RN && (float)value == value) {
        const uint32_t bits = as_bits((float)value);
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    const double x = narrowed(value, 8, -125, 0x1.fep127, mode);
    return as_bits((float)x) >> 16 | (signbit(value) ? 0x8000 : 0);
}

static float from_bf16(uint16_t bits) { return as_float((uint32_t)bits << 16); }
static float halves[1 << 16];  // the value of every f16
static float from_f16(uint16_t bits) { return halves[bits]; }
static float value_of_f16(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24));
}
static uint16_t low(uint32_t pair) { return (uint16_t)pair; }
static uint16_t high(uint32_t pair) { return pair >> 16; }
static uint32_t nearest_tf32(float x)
{ return isfinite(x) ? (as_bits(x) + 0x1000u) & 0xffffe000u : as_bits(x); }
static uint32_t even_tf32(float x)
{
    const uint32_t bits = as_bits(x);
    return isfinite(x) ? (bits + 0xfffu + (bits >> 13 & 1)) & 0xffffe000u : bits;
}

// Floats of integers: f32 of 64 bits is rounded once.
#define OF_INTEGERS(S, C) \
    static double f64_of_##S##64(C x, int mode) \
    { volatile C y = x; fesetround(mode); volatile double z = (double)y; fesetround(RN); return z; } \
    static float f32_of_##S##64(C x, int mode) \
    { volatile C y = x; fesetround(mode); volatile float z = (float)y; fesetround(RN); return z; } \
    static uint16_t f16_of_##S##64(C x, int mode) { return to_f16((double)x, mode); } \
    static uint16_t bf16_of_##S##64(C x, int mode) { return to_bf16((double)x, mode); }
OF_INTEGERS(s, int64_t)
OF_INTEGERS(u, uint64_t)

static double high_half(double x)
{ uint64_t bits; memcpy(&bits, &x, 8); bits &= ~0xffffffffull; memcpy(&x, &bits, 8); return x; }

static uint64_t reversed_bits(uint64_t x)
{ uint64_t y = 0; for (int n = 0; n < 64; ++n) y |= (x >> n & 1) << (63 - n); return y; }

static uint64_t inserted_bits(uint64_t what, uint64_t into, uint32_t place, uint32_t length, int bits)
{
    place &= 255, length &= 255;
    if (place >= (uint32_t)bits) return into;
    const uint64_t ones = (length >= 64 ? ~0ull : (1ull << length) - 1) << place;
    return (into & ~ones) | (what << place & ones);
}

#define EXTRACTED(T, C, U, BITS) \
    static C extracted_##T(C a, uint32_t place, uint32_t length) \
    { \
        place &= 255, length &= 255; \
        if (length == 0) return 0; \
        const int sign = (C)-1 < 0 && ((U)a >> (place + length - 1 < BITS ? place + length - 1 : BITS - 1) & 1); \
        U found = place < BITS ? (U)a >> place : 0; \
        if (length < BITS) found &= ((U)1 << length) - 1; \
        if (sign) { \
            const uint32_t known = place >= BITS ? 0 : length < BITS - place ? length : BITS - place; \
            found |= known < BITS ? ~(U)0 << known : 0; \
        } \
        return (C)found; \
    }
EXTRACTED(u32, uint32_t, uint32_t, 32)
EXTRACTED(s32, int32_t, uint32_t, 32)
EXTRACTED(u64, uint64_t, uint64_t, 64)
EXTRACTED(s64, int64_t, uint64_t, 64)
static uint32_t leading_u64(uint64_t x) { return x ? 63 - __builtin_clzll(x) : ~0u; }
static uint32_t leading_u32(uint32_t x) { return leading_u64(x); }
static uint32_t leading_s64(int64_t x) { return leading_u64(x < 0 ? ~x : x); }
static uint32_t leading_s32(int32_t x) { return leading_u64((uint32_t)(x < 0 ? ~x : x)); }

static uint32_t permuted(uint32_t a, uint32_t b, uint32_t choice)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t found = 0;
    for (int n = 0; n < 4; ++n) {
        const int picked = choice >> 4 * n & 15;
        uint8_t byte = bytes >> 8 * (picked & 7);
        if (picked & 8) byte = byte >> 7 ? 255 : 0;
        found |= (uint32_t)byte << 8 * n;
    }
    return found;
}
static uint64_t funnel(uint32_t a, uint32_t b, uint32_t by)
{ return by >= 32 ? (uint64_t)a << 32 : ((uint64_t)b << 32 | a) << by; }
static uint64_t funnel_right(uint32_t a, uint32_t b, uint32_t by)
{ return ((uint64_t)b << 32 | a) >> by; }
static uint32_t logic3(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t found = 0;
    for (int n = 0; n < 8; ++n)
        if (table >> n & 1) found |= (n & 4 ? a : ~a) & (n & 2 ? b : ~b) & (n & 1 ? c : ~c);
    return found;
}
#define DOT4(NAME, A, B) \
    static int32_t NAME(uint32_t a, uint32_t b, uint32_t c) \
    { int32_t s = c; for (int n = 0; n < 32; n += 8) s += (A)(a >> n) * (B)(b >> n); return s; }
DOT4(dot4_uu, uint8_t, uint8_t)
DOT4(dot4_us, uint8_t, int8_t)
DOT4(dot4_su, int8_t, uint8_t)
DOT4(dot4_ss, int8_t, int8_t)
