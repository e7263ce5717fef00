/*
 * The order of the tiles of a group, the same in all grouped GEMMs on tensor cores.
 */

/* A tile's position in a group, in tiles. */
typedef struct tile_position {
    uint down, across;
} tile_position;

/* Tile `nth` of `down` x `across` tiles. The order runs down the first `most` tiles of each column,
 * column after column. Then the order continues in the same way with the next `most` rows of
 * tiles. */
static inline tile_position tile_position_of(uint nth, uint most, uint down, uint across) {
    const uint high = nth / (most * across) * most, rest = nth % (most * across),
               span = min(most, down - high);
    return (tile_position){high + rest % span, rest / span};
}
