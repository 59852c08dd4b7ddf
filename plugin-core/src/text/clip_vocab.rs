//! The vocabulary that CLIP was trained with, rebuilt from its merges.

/// The merges, a pair a line; `build.rs` takes them from a pinned package.
const MERGES: &str = include_str!(concat!(env!("OUT_DIR"), "/clip_merges.txt"));

/// What a token that ends a word ends with.
const END_OF_WORD: &str = "</w>";

/// The merges in order of rank.
pub(super) fn merges() -> Vec<(String, String)> {
    let pairs = MERGES.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(left, right)| (left.into(), right.into())).collect()
}

/// Tokens in order of their ids: the bytes, the bytes that end a word, what the merges make, and
/// the two specials.
pub(super) fn tokens(merges: &[(String, String)]) -> Vec<String> {
    let symbols = byte_symbols();
    let mut tokens: Vec<String> = symbols.iter().map(|symbol| symbol.to_string()).collect();
    tokens.extend(symbols.iter().map(|symbol| format!("{symbol}{END_OF_WORD}")));
    tokens.extend(merges.iter().map(|(left, right)| format!("{left}{right}")));
    tokens.extend([super::special::BOS.to_string(), super::special::EOS.to_string()]);
    tokens
}

/// A printable character for each byte, in the order that CLIP numbers them: first the bytes that
/// print as themselves, then the others, as the characters from U+0100 on.
fn byte_symbols() -> Vec<char> {
    let prints = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others = (0..=255u8).filter(|byte| !prints(byte)).count() as u32;
    let themselves = (0..=255u8).filter(prints).map(char::from);
    themselves.chain((0x100..0x100 + others).filter_map(char::from_u32)).collect()
}
