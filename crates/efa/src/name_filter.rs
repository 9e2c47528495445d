//! Lists of names in variables: those that are meant, or all but those.

use std::fmt;
use std::str::FromStr;

/// Names that are allowed: `efa,efa-shm`, all but some: `^efa-tcp`, or all (the default).
///
/// ```
/// use efa::NameFilter;
///
/// let filter: NameFilter = "^efa-tcp,efa-local".parse()?;
/// assert!(filter.allows(&["efa", "efa-shm"]) && !filter.allows(&["efa", "efa-tcp"]));
/// assert!(NameFilter::default().allows(&["efa"]));
/// # Ok::<(), efa::NameFilterError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NameFilter(Names);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Names {
    #[default]
    All,
    Only(Vec<String>),
    Except(Vec<String>),
}

/// A list with an empty name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of names, separated by commas, with ^ in front to exclude them")]
pub struct NameFilterError(String);

impl NameFilter {
    /// Whether something with these names is allowed: one of them is in the list, or none of them is
    /// excluded.
    #[must_use]
    pub fn allows(&self, names: &[&str]) -> bool {
        let has = |list: &[String]| {
            list.iter().any(|listed| names.iter().any(|name| listed.eq_ignore_ascii_case(name)))
        };
        match &self.0 {
            Names::All => true,
            Names::Only(list) => has(list),
            Names::Except(list) => !has(list),
        }
    }

    /// Whether everything is allowed.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.0 == Names::All
    }
}

impl FromStr for NameFilter {
    type Err = NameFilterError;

    fn from_str(text: &str) -> Result<Self, NameFilterError> {
        let list = text.trim();
        let (names, excluded) = match list.strip_prefix('^') {
            Some(names) => (names, true),
            None => (list, false),
        };
        let names: Vec<String> = names.split(',').map(|name| name.trim().to_owned()).collect();
        if names.iter().any(String::is_empty) {
            return Err(NameFilterError(text.to_owned()));
        }
        Ok(Self(if excluded { Names::Except(names) } else { Names::Only(names) }))
    }
}

/// Prints what [`FromStr`] reads, and `all`.
impl fmt::Display for NameFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Names::All => f.pad("all"),
            Names::Only(names) => f.pad(&names.join(",")),
            Names::Except(names) => f.pad(&format!("^{}", names.join(","))),
        }
    }
}

/// In one line, as all options.
impl fmt::Debug for NameFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NameFilter({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_what_is_meant_or_excluded() {
        let read = |text: &str| text.parse::<NameFilter>();
        let only = read(" efa , EFA-shm ").unwrap_or_default();
        assert_eq!(only.to_string(), "efa,EFA-shm");
        assert!(only.allows(&["efa"]) && only.allows(&["x", "efa-SHM"]) && !only.allows(&["x"]));
        let except = read("^efa-shm").unwrap_or_default();
        assert_eq!((except.to_string().as_str(), except.is_all()), ("^efa-shm", false));
        assert!(
            except.allows(&["efa"]) && except.allows(&[]) && !except.allows(&["efa", "efa-shm"])
        );
        assert!(NameFilter::default().allows(&[]) && NameFilter::default().is_all());
    }

    #[test]
    fn list_with_an_empty_name_is_an_error_with_the_text() {
        for wrong in ["", "^", ",", "a,,b", "^a,"] {
            let error = wrong.parse::<NameFilter>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{wrong}` is not a list")), "{error}");
        }
    }
}
