/* Messages of the stubs: the part of Protocol Buffers that they need. What comes is checked here. */
#include "camelot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void grow(struct camelot_message *message, size_t more) {
    if (message->length + more <= message->capacity)
        return;
    size_t capacity = message->capacity * 2 + more + 64;
    unsigned char *bytes = realloc(message->bytes, capacity);
    if (!bytes) {
        fprintf(stderr, "camelot: no memory for a message of %zu bytes\n", capacity);
        abort();
    }
    message->bytes = bytes;
    message->capacity = capacity;
}

static void put_varint(struct camelot_message *message, uint64_t number) {
    grow(message, 10);
    while (number >= 0x80) {
        message->bytes[message->length++] = (unsigned char)(number | 0x80);
        number >>= 7;
    }
    message->bytes[message->length++] = (unsigned char)number;
}

void camelot_put_number(struct camelot_message *message, unsigned field, int64_t number) {
    put_varint(message, (uint64_t)field << 3);
    put_varint(message, (uint64_t)number);
}

void camelot_put_double(struct camelot_message *message, unsigned field, double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    put_varint(message, (uint64_t)field << 3 | 1);
    grow(message, 8);
    for (int at = 0; at < 8; at++)
        message->bytes[message->length++] = (unsigned char)(bits >> 8 * at);
}

void camelot_put_bytes(struct camelot_message *message, unsigned field, const void *bytes, size_t length) {
    put_varint(message, (uint64_t)field << 3 | 2);
    put_varint(message, length);
    grow(message, length);
    if (length)
        memcpy(message->bytes + message->length, bytes, length);
    message->length += length;
}

static int get_varint(struct camelot_message *message, uint64_t *number) {
    *number = 0;
    for (unsigned shift = 0; shift < 64 && message->at < message->length; shift += 7) {
        unsigned char byte = message->bytes[message->at++];
        *number |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return 1;
    }
    message->wrong = 1;
    return 0;
}

unsigned camelot_next(struct camelot_message *message) {
    uint64_t key, length;
    if (message->wrong || message->at >= message->length || !get_varint(message, &key))
        return 0;
    message->field = NULL;
    message->field_length = 0;
    message->number = 0;
    switch (key & 7) {
    case 0:
        if (!get_varint(message, &message->number))
            return 0;
        break;
    case 1:
        length = 8;
        goto bytes;
    case 5:
        length = 4;
        goto bytes;
    case 2:
        if (!get_varint(message, &length))
            return 0;
    bytes:
        if (length > message->length - message->at) {
            message->wrong = 1;
            return 0;
        }
        message->field = message->bytes + message->at;
        message->field_length = length;
        message->at += length;
        break;
    default:
        message->wrong = 1;
        return 0;
    }
    if (key >> 3 == 0 || key >> 3 > UINT32_MAX) {
        message->wrong = 1;
        return 0;
    }
    return (unsigned)(key >> 3);
}

double camelot_double(const struct camelot_message *message) {
    uint64_t bits = 0;
    double number;
    for (size_t at = 0; at < message->field_length && at < 8; at++)
        bits |= (uint64_t)message->field[at] << 8 * at;
    memcpy(&number, &bits, sizeof number);
    return number;
}

void camelot_get_bytes(struct camelot_message *message, void *to, size_t length) {
    if (message->field_length != length)
        message->wrong = 1;
    else if (length)
        memcpy(to, message->field, length);
}

void camelot_get_string(struct camelot_message *message, char *to, size_t length) {
    if (message->field_length >= length) {
        message->wrong = 1;
        return;
    }
    if (message->field_length)
        memcpy(to, message->field, message->field_length);
    to[message->field_length] = 0;
}

void camelot_free_message(struct camelot_message *message) {
    free(message->bytes);
    memset(message, 0, sizeof *message);
}
