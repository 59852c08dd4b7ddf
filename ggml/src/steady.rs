//! What need not be computed again: results that depend on fewer inputs than what looks at them, such as
//! keys and values of a text that stays the same from step to step.

use std::collections::HashMap;
use std::ptr::NonNull;

use crate::sys;

type Raw = NonNull<sys::ggml_tensor>;

/// Some inputs of a graph, one bit for each.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Inputs(u64);

impl Inputs {
    /// All of them.
    pub(crate) const ALL: Self = Self(u64::MAX);

    /// The input that is the `slot`-th slot. From the 64th on, they share a bit.
    pub(crate) fn one(slot: usize) -> Self {
        Self(1 << slot.min(63))
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub(crate) fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Which inputs each of `tensors` depends on, operands coming before what uses them.
///
/// # Safety
/// The tensors and their operands are alive.
pub(crate) unsafe fn dependencies(tensors: &[Raw], inputs: &HashMap<Raw, Inputs>) -> HashMap<Raw, Inputs> {
    let mut found = inputs.clone();
    for &tensor in tensors {
        let mut all = found.get(&tensor).copied().unwrap_or_default();
        // SAFETY: the caller's promise.
        for operand in unsafe { operands(tensor) } {
            all.add(found.get(&operand).copied().unwrap_or_default());
        }
        found.insert(tensor, all);
    }
    found
}

/// Those of `tensors` that have to be there for one that depends on more inputs than they, and for which
/// `may_stay` holds.
///
/// # Safety
/// As for [`dependencies`].
pub(crate) unsafe fn steady(
    tensors: &[Raw],
    depends: &HashMap<Raw, Inputs>,
    may_stay: impl Fn(Raw) -> bool,
) -> Vec<Raw> {
    let mut found = Vec::new();
    for user in tensors {
        // SAFETY: the caller's promise.
        for operand in unsafe { operands(*user) } {
            let is_new = may_stay(operand) && !found.contains(&operand);
            if is_new && depends.get(&operand) != depends.get(user) {
                found.push(operand);
            }
        }
    }
    found
}

/// What `tensor` reads, and what it is a view of.
///
/// # Safety
/// As for [`dependencies`].
pub(crate) unsafe fn operands(tensor: Raw) -> impl Iterator<Item = Raw> {
    // SAFETY: the caller's promise.
    let raw = unsafe { tensor.as_ref() };
    raw.src.into_iter().chain([raw.view_src]).filter_map(NonNull::new)
}
