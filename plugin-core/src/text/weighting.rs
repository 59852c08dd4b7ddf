//! Prompt attention in the notation of AUTOMATIC1111's web UI.
//!
//! | written | meaning |
//! |---|---|
//! | `(word)` | weight × 1.1 |
//! | `[word]` | weight ÷ 1.1 |
//! | `(word:1.2)` | weight × 1.2 |
//! | `\(` `\)` `\[` `\]` `\\` | the character itself |
//! | `BREAK` | the rest starts a new chunk |
//!
//! Brackets nest, and multiply. What does not fit is forgiven as there: a bracket that is never
//! closed reaches to the end, one that was never opened is text, and so is a weight that is not a
//! decimal number: `(a:nan)` is `a:nan` at 1.1, and in `(a:1.2.3)` the bracket is text with it.
//! Round and square brackets may overlap.
//! Weights are always finite: they are limited to ±[`MAX_WEIGHT`]. A single backslash before another
//! character is dropped.

/// No weight is further from 0 than this.
pub const MAX_WEIGHT: f32 = 100.0;

/// What a bracket without a number multiplies by.
const EMPHASIS: f64 = 1.1;

/// Products of nested brackets stay within this, so that they can't become infinite or NaN.
const MAX_PRODUCT: f64 = 1e100;

/// A stretch of a prompt with one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The text, without brackets and escapes.
    pub text: String,
    /// What the text's states are multiplied by; finite.
    pub weight: f32,
    /// Whether a `BREAK` stands before it, so that it starts a new chunk.
    pub starts_chunk: bool,
}

/// Takes a prompt apart. Never empty: a prompt without text is one empty span.
///
/// Takes time in proportion to the prompt's length, however deep its brackets nest.
pub fn parse(prompt: &str) -> Vec<Span> {
    let mut parser = Parser::default();
    let mut rest = prompt;
    while let Some(first) = rest.chars().next() {
        let used = match first {
            '\\' => {
                let escaped = rest[1..].chars().next().filter(|c| r"\()[]".contains(*c));
                let length = escaped.map_or(0, char::len_utf8);
                parser.text(&rest[1..1 + length]);
                1 + length
            }
            '(' => parser.round.open(parser.pieces.len()),
            '[' => parser.square.open(parser.pieces.len()),
            ')' if parser.round.close(parser.pieces.len(), EMPHASIS) => 1,
            ']' if parser.square.close(parser.pieces.len(), 1.0 / EMPHASIS) => 1,
            ':' => match weight(rest) {
                Some((Some(weight), length)) if parser.round.close(parser.pieces.len(), weight) => length,
                Some((_, length)) => parser.text(&rest[..length]),
                None => parser.text(":"),
            },
            ')' | ']' => parser.text(&rest[..1]),
            _ => {
                let length = rest.find(['\\', '(', ')', '[', ']', ':']).unwrap_or(rest.len());
                parser.words(&rest[..length])
            }
        };
        rest = &rest[used..];
    }
    parser.finish()
}

/// The pieces of text found so far, and the brackets around them.
#[derive(Default)]
struct Parser {
    /// The text of a piece, and whether a break stands before it.
    pieces: Vec<(String, bool)>,
    round: Brackets,
    square: Brackets,
}

impl Parser {
    /// Adds text as it stands, and returns its length.
    fn text(&mut self, text: &str) -> usize {
        self.pieces.push((text.into(), false));
        text.len()
    }

    /// Adds text that may hold `BREAK`, and returns its length.
    fn words(&mut self, text: &str) -> usize {
        let mut after_break = false;
        let mut rest = text;
        while let Some((before, after)) = split_break(rest) {
            self.pieces.push((before.trim_end().into(), after_break));
            after_break = true;
            rest = after.trim_start();
        }
        self.pieces.push((rest.into(), after_break));
        text.len()
    }

    fn finish(self) -> Vec<Span> {
        let round = self.round.products(self.pieces.len(), EMPHASIS);
        let square = self.square.products(self.pieces.len(), 1.0 / EMPHASIS);
        let mut spans: Vec<Span> = Vec::new();
        for (((text, starts_chunk), round), square) in self.pieces.into_iter().zip(round).zip(square) {
            let weight = ((round * square) as f32).clamp(-MAX_WEIGHT, MAX_WEIGHT);
            match spans.last_mut() {
                Some(last) if last.weight == weight && !starts_chunk => last.text.push_str(&text),
                _ => spans.push(Span { text, weight, starts_chunk }),
            }
        }
        if spans.is_empty() {
            spans.push(Span { text: String::new(), weight: 1.0, starts_chunk: false });
        }
        spans
    }
}

/// Brackets of one kind: where each opens, where it closes and what it multiplies by.
#[derive(Default)]
struct Brackets {
    ranges: Vec<Range>,
    /// Which of `ranges` are open, innermost last.
    open: Vec<usize>,
}

struct Range {
    start: usize,
    /// The first piece behind it, and the factor; none while it is open.
    end: Option<(usize, f64)>,
}

impl Brackets {
    /// Opens a bracket before piece `start`, and returns the length of the character.
    fn open(&mut self, start: usize) -> usize {
        self.open.push(self.ranges.len());
        self.ranges.push(Range { start, end: None });
        1
    }

    /// Closes the innermost open bracket before piece `end`; says whether there was one.
    fn close(&mut self, end: usize, factor: f64) -> bool {
        let innermost = self.open.pop();
        if let Some(index) = innermost {
            self.ranges[index].end = Some((end, factor));
        }
        innermost.is_some()
    }

    /// The product of all brackets around each of `count` pieces; open ones reach to the end.
    ///
    /// Brackets of one kind nest, and are kept in the order in which they open, so one sweep with a
    /// stack of the products does it.
    fn products(self, count: usize, unclosed: f64) -> Vec<f64> {
        let mut products = Vec::with_capacity(count);
        let mut stack: Vec<(usize, f64)> = Vec::new();
        let mut ranges = self.ranges.into_iter().peekable();
        for piece in 0..count {
            while stack.last().is_some_and(|(end, _)| *end <= piece) {
                stack.pop();
            }
            while let Some(Range { end, .. }) = ranges.next_if(|range| range.start <= piece) {
                let (end, factor) = end.unwrap_or((usize::MAX, unclosed));
                if end > piece {
                    let outer = stack.last().map_or(1.0, |(_, product)| *product);
                    stack.push((end, (outer * factor).clamp(-MAX_PRODUCT, MAX_PRODUCT)));
                }
            }
            products.push(stack.last().map_or(1.0, |(_, product)| *product));
        }
        products
    }
}

/// `:1.2)` at the start of `text`: the number, none if its digits and points make none, and the
/// length of the whole.
fn weight(text: &str) -> Option<(Option<f64>, usize)> {
    let number = text.strip_prefix(':')?.trim_start();
    let behind_sign = number.strip_prefix(['+', '-']).unwrap_or(number);
    let end = behind_sign.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    if end.len() == behind_sign.len() {
        return None;
    }
    let close = end.trim_start().strip_prefix(')')?;
    let weight = number[..number.len() - end.len()].parse::<f64>().ok();
    // Hundreds of digits read as infinity.
    let weight = weight.map(|weight| weight.clamp(-MAX_PRODUCT, MAX_PRODUCT));
    Some((weight, text.len() - close.len()))
}

/// What stands before and after the first `BREAK` that is a word of its own.
fn split_break(text: &str) -> Option<(&str, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices("BREAK").find_map(|(start, word)| {
        let (before, after) = (&text[..start], &text[start + word.len()..]);
        let alone = !before.ends_with(is_word) && !after.starts_with(is_word);
        alone.then_some((before, after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(prompt: &str, expected: &[(&str, f32)]) {
        let spans = parse(prompt);
        let found: Vec<(&str, f32)> = spans.iter().map(|span| (span.text.as_str(), span.weight)).collect();
        assert_eq!(found.len(), expected.len(), "{prompt:?} gave {found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found.0, expected.0, "{prompt:?}");
            assert!((found.1 - expected.1).abs() < 1e-5, "{prompt:?}: {found:?}, expected {expected:?}");
        }
    }

    #[test]
    fn matches_the_web_ui() {
        // The examples in the documentation of its parse_prompt_attention.
        check("normal text", &[("normal text", 1.0)]);
        check("an (important) word", &[("an ", 1.0), ("important", 1.1), (" word", 1.0)]);
        check("(unbalanced", &[("unbalanced", 1.1)]);
        check(r"\(literal\]", &[("(literal]", 1.0)]);
        check("(unnecessary)(parens)", &[("unnecessaryparens", 1.1)]);
        check(
            "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).",
            &[
                ("a ", 1.0),
                ("house", 1.573),
                (" ", 1.1),
                ("on", 1.0),
                (" a ", 1.1),
                ("hill", 0.55),
                (", sun, ", 1.1),
                ("sky", 1.4641),
                (".", 1.1),
            ],
        );
    }

    #[test]
    fn weights_and_escapes() {
        check("", &[("", 1.0)]);
        check("()", &[("", 1.0)]);
        check("[a]", &[("a", 1.0 / 1.1)]);
        check("((a))", &[("a", 1.21)]);
        check("(a: -0.5 )b", &[("a", -0.5), ("b", 1.0)]);
        check("(a:+.5)", &[("a", 0.5)]);
        check(r"a\\b\c\", &[(r"a\bc", 1.0)]);
        check(r"(a\:1.5)", &[("a", 1.5)]);
        check("a)b]c:1.2)", &[("a)b]c:1.2)", 1.0)]);
        check("(a[b)c]", &[("a", 1.1), ("b", 1.0), ("c", 1.0 / 1.1)]);
        check("[a:1.5]", &[("a:1.5", 1.0 / 1.1)]);
        check("(é:2)漢", &[("é", 2.0), ("漢", 1.0)]);
    }

    #[test]
    fn odd_weights_are_text_or_finite() {
        check("(a:nan)", &[("a:nan", 1.1)]);
        check("(a:inf)", &[("a:inf", 1.1)]);
        check("(a:1e9)", &[("a:1e9", 1.1)]);
        check("(a:1.2.3) b", &[("a:1.2.3) b", 1.1)]);
        check("(a:)", &[("a:", 1.1)]);
        check("(a:.)", &[("a:.)", 1.1)]);
        check("(a:99999)", &[("a", MAX_WEIGHT)]);
        check("(a:-99999)", &[("a", -MAX_WEIGHT)]);
        check(&format!("(a:{})", "9".repeat(1000)), &[("a", MAX_WEIGHT)]);
        check(&format!("{}(a:0){}", "(".repeat(5000), ")".repeat(5000)), &[("a", 0.0)]);
    }

    #[test]
    fn break_starts_a_chunk() {
        let found = parse("red BREAK (blue BREAK green) BREAKFAST");
        let found: Vec<_> = found.iter().map(|span| (span.text.as_str(), span.starts_chunk)).collect();
        assert_eq!(found, [("red", false), ("", true), ("blue", false), ("green", true), (" BREAKFAST", false)]);
        assert!(parse("BREAK")[1].starts_chunk);
    }

    #[test]
    fn deep_nesting_is_cheap() {
        let depth = 1_000_000;
        for prompt in [
            "(".repeat(depth) + "a",
            "[".repeat(depth) + "a" + &"]".repeat(depth),
            "(".repeat(depth) + "a" + &")".repeat(depth),
            "(a".repeat(depth),
            "([".repeat(depth) + "a" + &")]".repeat(depth),
            ")".repeat(depth),
            ":1".repeat(depth),
            "(:".repeat(depth),
            format!("({}", ": ".repeat(depth)),
        ] {
            assert!(parse(&prompt).iter().all(|span| span.weight.is_finite()));
        }
    }
}
