/* SHA-256 and HMAC of the server against the vectors of FIPS 180-4 and RFC 4231, and every length around a block. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../../apps/server/sha256.h"

static void expect(const uint8_t *digest, const char *hex) {
    char text[2 * NEAP_SERVE_SHA256 + 1];
    for (size_t i = 0; i < NEAP_SERVE_SHA256; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal(text, hex);
}

static void vectors(void **state) {
    static char million[1000000];
    uint8_t digest[NEAP_SERVE_SHA256];
    (void)state;
    neap_serve_sha256("", 0, digest);
    expect(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    neap_serve_sha256("abc", 3, digest);
    expect(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    neap_serve_sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, digest);
    expect(digest, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    memset(million, 'a', sizeof million);
    neap_serve_sha256(million, sizeof million, digest);
    expect(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* The digest of the digests of 0 .. 130 bytes 0, 1, 2 ...: all paddings. The value is of Python's hashlib. */
static void lengths(void **state) {
    uint8_t bytes[131], all[131 * NEAP_SERVE_SHA256], digest[NEAP_SERVE_SHA256];
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)i;
    for (size_t n = 0; n < sizeof bytes; n++) neap_serve_sha256(bytes, n, all + n * NEAP_SERVE_SHA256);
    neap_serve_sha256(all, sizeof all, digest);
    expect(digest, "e5bbbecd60c3632a3455f465bfd8b079c30ef608d2bcc34227f4e5573029020e");
}

static void hmac(void **state) {
    uint8_t key[131], digest[NEAP_SERVE_SHA256];
    (void)state;
    memset(key, 0x0b, 20); /* RFC 4231, cases 1, 2, 6 */
    neap_serve_hmac(key, 20, "Hi There", 8, digest);
    expect(digest, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    neap_serve_hmac("Jefe", 4, "what do ya want for nothing?", 28, digest);
    expect(digest, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    neap_serve_hmac(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First", 54, digest);
    expect(digest, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(vectors), cmocka_unit_test(lengths), cmocka_unit_test(hmac)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
