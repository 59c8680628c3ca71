/* CRC-32C (Castagnoli), the checksum of TensorFlow's record files. */
#include "engine/engine.h"

#define POLYNOMIAL 0x82F63B78u /* reversed: the lowest bit comes first */

uint32_t dlb_crc32c(uint32_t crc, const void *bytes, size_t size) {
    uint32_t
        table[16]; /* half a byte at a time: no state to set up, and quick enough */
    for (uint32_t i = 0; i < 16; i++) {
        table[i] = i;
        for (int bit = 0; bit < 4; bit++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? POLYNOMIAL : 0);
    }
    crc = ~crc;
    for (const uint8_t *byte = bytes, *end = byte + size; byte < end; byte++) {
        crc ^= *byte;
        crc = table[crc & 15] ^ crc >> 4;
        crc = table[crc & 15] ^ crc >> 4;
    }
    return ~crc;
}
