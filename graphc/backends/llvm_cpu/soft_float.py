"""Conversions between float formats that LLVM may call but that not every C runtime has.

Where the CPU has no instruction for a conversion (double to half; any half on a CPU without F16C;
bfloat16 without AVX512-BF16), LLVM calls a function of the compiler's runtime library, which a
Python process need not have loaded. These are the same functions in LLVM IR: round to nearest,
ties to even; NaN stays NaN; integer operations only, so that they never call themselves.

`half` follows F. Giesen, "Float->half variants" (2016, public domain). From double, the value is
first rounded to float "to odd"; rounding a second time then cannot differ from rounding once.
"""

from __future__ import annotations

SYMBOLS = ("__extendhfsf2", "__truncsfhf2", "__truncdfhf2", "__truncsfbf2", "__truncdfbf2")

SOFT_FLOAT_IR = """
define internal i16 @half_bits(i32 %bits) #0 {
  %sign = and i32 %bits, -2147483648
  %u = xor i32 %bits, %sign
  %large = icmp uge i32 %u, 1199570944               ; 2^16: infinity as a half
  %nan = icmp ugt i32 %u, 2139095040
  %special = select i1 %nan, i32 32256, i32 31744
  %small = icmp ult i32 %u, 947912704                ; 2^-14: subnormal as a half
  %f = bitcast i32 %u to float
  %shifted = fadd float %f, 5.000000e-01             ; aligns the bits of the subnormal, rounding
  %raw = bitcast float %shifted to i32
  %subnormal = sub i32 %raw, 1056964608
  %shift = lshr i32 %u, 13
  %odd = and i32 %shift, 1
  %rebias = add i32 %u, -939520001                   ; ((15 - 127) << 23) + 0xfff
  %rounded = add i32 %rebias, %odd
  %normal = lshr i32 %rounded, 13
  %finite = select i1 %small, i32 %subnormal, i32 %normal
  %magnitude = select i1 %large, i32 %special, i32 %finite
  %top = lshr i32 %sign, 16
  %all = or i32 %magnitude, %top
  %out = trunc i32 %all to i16
  ret i16 %out
}

define internal i16 @bfloat_bits(i32 %bits) #0 {
  %magnitude = and i32 %bits, 2147483647
  %nan = icmp ugt i32 %magnitude, 2139095040
  %high = lshr i32 %bits, 16
  %quiet = or i32 %high, 64
  %odd = and i32 %high, 1
  %sum = add i32 %bits, 32767
  %rounded = add i32 %sum, %odd
  %number = lshr i32 %rounded, 16
  %all = select i1 %nan, i32 %quiet, i32 %number
  %out = trunc i32 %all to i16
  ret i16 %out
}

define internal i32 @float_bits_to_odd(double %x) #0 {
  %f = fptrunc double %x to float
  %bits = bitcast float %f to i32
  %back = fpext float %f to double
  %exact = fcmp ueq double %back, %x                 ; true for NaN too
  %wide = bitcast double %back to i64
  %source = bitcast double %x to i64
  %wide.abs = and i64 %wide, 9223372036854775807
  %source.abs = and i64 %source, 9223372036854775807
  %away = icmp ugt i64 %wide.abs, %source.abs
  %step = zext i1 %away to i32
  %truncated = sub i32 %bits, %step
  %odd = or i32 %truncated, 1
  %out = select i1 %exact, i32 %bits, i32 %odd
  ret i32 %out
}

define half @__truncsfhf2(float %x) #0 {
  %bits = bitcast float %x to i32
  %out = call i16 @half_bits(i32 %bits)
  %half = bitcast i16 %out to half
  ret half %half
}

define half @__truncdfhf2(double %x) #0 {
  %bits = call i32 @float_bits_to_odd(double %x)
  %out = call i16 @half_bits(i32 %bits)
  %half = bitcast i16 %out to half
  ret half %half
}

define bfloat @__truncsfbf2(float %x) #0 {
  %bits = bitcast float %x to i32
  %out = call i16 @bfloat_bits(i32 %bits)
  %bf = bitcast i16 %out to bfloat
  ret bfloat %bf
}

define bfloat @__truncdfbf2(double %x) #0 {
  %bits = call i32 @float_bits_to_odd(double %x)
  %out = call i16 @bfloat_bits(i32 %bits)
  %bf = bitcast i16 %out to bfloat
  ret bfloat %bf
}

define float @__extendhfsf2(half %x) #0 {
  %h16 = bitcast half %x to i16
  %h = zext i16 %h16 to i32
  %magnitude = and i32 %h, 32767
  %shifted = shl i32 %magnitude, 13
  %exponent = and i32 %shifted, 260046848            ; 0x7c00 << 13
  %special = icmp eq i32 %exponent, 260046848
  %subnormal = icmp eq i32 %exponent, 0
  %normal = add i32 %shifted, 939524096              ; (127 - 15) << 23
  %infinite = add i32 %normal, 939524096
  %raised = add i32 %normal, 8388608
  %raised.f = bitcast i32 %raised to float
  %exact.f = fsub float %raised.f, 0x3F10000000000000 ; 2^-14
  %exact = bitcast float %exact.f to i32
  %finite = select i1 %subnormal, i32 %exact, i32 %normal
  %bits = select i1 %special, i32 %infinite, i32 %finite
  %sign = and i32 %h, 32768
  %top = shl i32 %sign, 16
  %all = or i32 %bits, %top
  %out = bitcast i32 %all to float
  ret float %out
}

attributes #0 = { nounwind }
"""
