//! Converts label selectors.

use super::{Checked, invalid};
use crate::convert::Converter;
use crate::convert::name::is_subdomain;
use crate::policy::{LabelRequirement, LabelSelector, Operator};
use beeline_model::Name;
use beeline_model::refusal::RefusalReason;
use beeline_model::selector::{LabelOperator, Requirement, Selector};

impl Converter {
    pub(super) fn optional_selector(
        &mut self,
        at: &str,
        selector: Option<&LabelSelector>,
    ) -> Checked<Option<Selector>> {
        selector.map(|selector| self.selector(at, selector)).transpose()
    }

    pub(super) fn selector(&mut self, at: &str, selector: &LabelSelector) -> Checked<Selector> {
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            let operator = LabelOperator::In([self.label_value(at, value)?].into());
            requirements.push(Requirement { key: self.label_key(at, key)?, operator });
        }
        for requirement in selector.match_expressions.iter().flatten() {
            requirements.push(self.requirement(at, requirement)?);
        }
        Ok(Selector(requirements.into()))
    }

    fn requirement(&mut self, at: &str, requirement: &LabelRequirement) -> Checked<Requirement> {
        let LabelRequirement { key, operator, values } = requirement;
        let values = values.iter().flatten().map(|value| self.label_value(at, value));
        let values = values.collect::<Checked<Box<[Name]>>>()?;
        let operator = match (operator, values.is_empty()) {
            (Operator::In, false) => LabelOperator::In(values),
            (Operator::NotIn, false) => LabelOperator::NotIn(values),
            (Operator::Exists, true) => LabelOperator::Exists,
            (Operator::DoesNotExist, true) => LabelOperator::DoesNotExist,
            (_, true) => {
                return invalid(RefusalReason::BadSelector, format!("{at}: {operator:?} of {key:?} needs values"));
            }
            (_, false) => {
                return invalid(RefusalReason::BadSelector, format!("{at}: {operator:?} of {key:?} takes no values"));
            }
        };
        Ok(Requirement { key: self.label_key(at, key)?, operator })
    }

    fn label_key(&mut self, at: &str, key: &str) -> Checked<Name> {
        let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
        let valid = prefix.is_none_or(is_subdomain) && !name.is_empty() && is_value(name);
        if valid {
            Ok(self.names.intern(key))
        } else {
            invalid(RefusalReason::BadSelector, format!("{at}: {key:?} is not the key of a label"))
        }
    }

    fn label_value(&mut self, at: &str, value: &str) -> Checked<Name> {
        if is_value(value) {
            Ok(self.names.intern(value))
        } else {
            invalid(RefusalReason::BadSelector, format!("{at}: {value:?} is not the value of a label"))
        }
    }
}

fn is_value(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    bytes.len() <= 63 && ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_checked() {
        for good in ["", "a", "A_b.c-1", "0"] {
            assert!(is_value(good), "{good}");
        }
        for bad in ["-a", "a-", ".", "a b", "a/b", "ä", &"a".repeat(64)] {
            assert!(!is_value(bad), "{bad}");
        }
    }
}
