// Integer division, powers and shifts with Python's and torch's meaning where GLSL has none: a divisor of zero gives 0 (torch
// raises), the lowest integer over -1 wraps.

int vk_truncdiv(int a, int b) {
    if (b == 0) {
        return 0;
    }
    return b == -1 ? 0 - a : a / b;
}

uint vk_truncdiv(uint a, uint b) {
    return b == 0u ? 0u : a / b;
}

int64_t vk_truncdiv(int64_t a, int64_t b) {
    if (b == int64_t(0)) {
        return int64_t(0);
    }
    return b == int64_t(-1) ? int64_t(0) - a : a / b;
}

uint64_t vk_truncdiv(uint64_t a, uint64_t b) {
    return b == uint64_t(0) ? uint64_t(0) : a / b;
}

int vk_floordiv(int a, int b) {
    int q = vk_truncdiv(a, b);
    return (a ^ b) < 0 && q * b != a && b != 0 ? q - 1 : q;
}

uint vk_floordiv(uint a, uint b) {
    return vk_truncdiv(a, b);
}

int64_t vk_floordiv(int64_t a, int64_t b) {
    int64_t q = vk_truncdiv(a, b);
    return (a ^ b) < int64_t(0) && q * b != a && b != int64_t(0) ? q - int64_t(1) : q;
}

uint64_t vk_floordiv(uint64_t a, uint64_t b) {
    return vk_truncdiv(a, b);
}

// The remainder with the sign of the divisor (Python, torch.remainder).
int vk_remainder(int a, int b) {
    return b == 0 ? 0 : a - vk_floordiv(a, b) * b;
}

uint vk_remainder(uint a, uint b) {
    return b == 0u ? 0u : a - (a / b) * b;
}

int64_t vk_remainder(int64_t a, int64_t b) {
    return b == int64_t(0) ? int64_t(0) : a - vk_floordiv(a, b) * b;
}

uint64_t vk_remainder(uint64_t a, uint64_t b) {
    return b == uint64_t(0) ? uint64_t(0) : a - (a / b) * b;
}

// The remainder with the sign of the dividend (C, torch.fmod).
int vk_fmod(int a, int b) {
    return b == 0 ? 0 : a - vk_truncdiv(a, b) * b;
}

uint vk_fmod(uint a, uint b) {
    return b == 0u ? 0u : a - (a / b) * b;
}

int64_t vk_fmod(int64_t a, int64_t b) {
    return b == int64_t(0) ? int64_t(0) : a - vk_truncdiv(a, b) * b;
}

uint64_t vk_fmod(uint64_t a, uint64_t b) {
    return b == uint64_t(0) ? uint64_t(0) : a - (a / b) * b;
}

// x^n, wrapping. A negative n gives 1 / x^|n| cut to an integer: 0 but for x = 1 and -1.
int vk_ipow(int x, int n) {
    if (n < 0) {
        return x == 1 ? 1 : (x == -1 ? ((n & 1) == 0 ? 1 : -1) : 0);
    }
    int result = 1;
    while (n != 0) {
        result = (n & 1) != 0 ? result * x : result;
        x *= x;
        n >>= 1;
    }
    return result;
}

uint vk_ipow(uint x, uint n) {
    uint result = 1u;
    while (n != 0u) {
        result = (n & 1u) != 0u ? result * x : result;
        x *= x;
        n >>= 1;
    }
    return result;
}

int64_t vk_ipow(int64_t x, int64_t n) {
    if (n < int64_t(0)) {
        bool even = (uint(n) & 1u) == 0u;
        return x == int64_t(1) ? x : (x == int64_t(-1) ? (even ? int64_t(1) : x) : int64_t(0));
    }
    int64_t result = int64_t(1);
    while (n != int64_t(0)) {
        result = (uint(n) & 1u) != 0u ? result * x : result;
        x *= x;
        n >>= 1;
    }
    return result;
}

uint64_t vk_ipow(uint64_t x, uint64_t n) {
    uint64_t result = uint64_t(1);
    while (n != uint64_t(0)) {
        result = (uint(n) & 1u) != 0u ? result * x : result;
        x *= x;
        n >>= 1;
    }
    return result;
}

// Shifts by any count: a negative one, or one of `width` or more, shifts everything out, as torch does on a CPU. A narrow
// type in an int gives its own width; wrap the result of vk_shl to it.
int vk_shl(int x, int n, int width) {
    return uint(n) < uint(width) ? x << n : 0;
}

uint vk_shl(uint x, int n, int width) {
    return uint(n) < uint(width) ? x << n : 0u;
}

int64_t vk_shl(int64_t x, int n, int width) {
    return uint(n) < uint(width) ? x << n : int64_t(0);
}

uint64_t vk_shl(uint64_t x, int n, int width) {
    return uint(n) < uint(width) ? x << n : uint64_t(0);
}

int vk_shr(int x, int n, int width) {
    return x >> (uint(n) < uint(width) ? n : width - 1);
}

int64_t vk_shr(int64_t x, int n, int width) {
    return x >> (uint(n) < uint(width) ? n : width - 1);
}

uint vk_shr(uint x, int n, int width) {
    return uint(n) < uint(width) ? x >> n : 0u;
}

uint64_t vk_shr(uint64_t x, int n, int width) {
    return uint(n) < uint(width) ? x >> n : uint64_t(0);
}

// The greatest common divisor, never negative but where it is the lowest integer: binary (Stein, "Computational problems
// associated with Racah algebra", 1967), for a GPU divides 64-bit integers slowly. Magnitudes are taken in unsigned registers.
uint vk_gcd(uint a, uint b) {
    if (a == 0u || b == 0u) {
        return a | b;
    }
    int twos = findLSB(a | b);
    a >>= findLSB(a);
    while (b != 0u) {
        b >>= findLSB(b);
        uint low = min(a, b);
        b = max(a, b) - low;
        a = low;
    }
    return a << twos;
}

int vk_gcd(int a, int b) {
    return int(vk_gcd(uint(abs(a)), uint(abs(b))));
}

int vk_trailing_zeros(uint64_t x) {
    uint low = uint(x);
    return low != 0u ? findLSB(low) : 32 + findLSB(uint(x >> 32));
}

uint64_t vk_gcd(uint64_t a, uint64_t b) {
    if (a == uint64_t(0) || b == uint64_t(0)) {
        return a | b;
    }
    int twos = vk_trailing_zeros(a | b);
    a >>= vk_trailing_zeros(a);
    while (b != uint64_t(0)) {
        b >>= vk_trailing_zeros(b);
        uint64_t low = min(a, b);
        b = max(a, b) - low;
        a = low;
    }
    return a << twos;
}

int64_t vk_gcd(int64_t a, int64_t b) {
    uint64_t x = uint64_t(a < int64_t(0) ? int64_t(0) - a : a);
    uint64_t y = uint64_t(b < int64_t(0) ? int64_t(0) - b : b);
    return int64_t(vk_gcd(x, y));
}
