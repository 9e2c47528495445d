//! Parameters: each sets its own, and every option has one.

use super::parameters::{RDMA, announces};
use super::*;

fn set(name: &str, value: &str) -> Environment {
    Environment::of([(name, value)])
}

// conformance: C31
#[test]
fn every_parameter_sets_its_own_value_and_no_other() {
    let default = Environment::default();
    for parameter in Parameter::ALL {
        let Some(kind) = parameter.kind() else {
            assert_eq!(set(parameter.name, "1"), default, "{}", parameter.name);
            assert_eq!(parameter.value(&default), None);
            continue;
        };
        let texts = match kind {
            ParameterKind::Number { most: ..4096, .. } => ["1", "0x3"],
            ParameterKind::Number { .. } => ["4096", "0x777"],
            ParameterKind::PowerOfTwo { .. } => ["16", "0x8"],
            ParameterKind::Ports => ["7000", "7000-7001"],
            ParameterKind::Text => ["one", "two"],
            ParameterKind::Switch => ["off", "yes"],
            ParameterKind::Choice(words) => [words[1], words[2]],
            ParameterKind::Names => ["efa", "^one,two"],
        };
        for text in texts {
            let environment = set(parameter.name, text);
            assert_eq!(environment.mistakes, []);
            assert_eq!(parameter.value(&environment), kind.parse(text), "{}", parameter.name);
            let others = Parameter::ALL.iter().filter(|other| other.name != parameter.name);
            for other in others {
                let (value, usual) = (other.value(&environment), other.value(&default));
                assert_eq!(value, usual, "{} sets {}", parameter.name, other.name);
            }
        }
    }
}

// conformance: C34
#[test]
fn invalid_value_is_a_mistake_and_sets_nothing() {
    let default = Environment::default();
    let beyond = u128::from(u64::MAX) + 1;
    let nonsense = ["", "many", "-1", "1.5", "0x", "0x+1", "1k", &beyond.to_string()];
    for parameter in Parameter::ALL {
        let Some(expected) = parameter.kind() else { continue };
        let mut wrong: Vec<String> = nonsense.iter().map(ToString::to_string).collect();
        match expected {
            ParameterKind::Names => wrong = ["", "^", "a,,b", ","].map(str::to_owned).to_vec(),
            ParameterKind::Text => wrong = vec![String::new()],
            ParameterKind::Ports => {
                wrong.extend(["0", "2-1", "0-1", "1-65536", "1-2-3"].map(str::to_owned));
            }
            ParameterKind::PowerOfTwo { most } => {
                wrong.extend([0, 3, most - 1, most + 1, most * 2].map(|number| number.to_string()));
            }
            _ => {}
        }
        if let ParameterKind::Number { least, most } = expected {
            wrong.extend(least.checked_sub(1).map(|less| less.to_string()));
            wrong.extend(most.checked_add(1).map(|more| more.to_string()));
        }
        for value in wrong {
            let mut environment = set(parameter.name, &value);
            let mistakes = std::mem::take(&mut environment.mistakes);
            assert_eq!(mistakes, [Mistake::Value { name: parameter.name, value, expected }]);
            assert_eq!(environment, default);
        }
    }
}

#[test]
fn largest_values_and_switch_spellings_are_accepted() {
    for (text, value) in [("1", true), ("ON", true), ("No", false), (" false ", false)] {
        let environment = set("FI_EFA_USE_DEVICE_RDMA", text);
        assert_eq!(announces(&environment, RDMA), Value::Switch(value), "{text}");
    }
    let most = set("FI_EFA_RUNT_SIZE", &u64::MAX.to_string());
    assert_eq!(most.endpoint.protocol.runt_size, u64::MAX);
    let usual = Environment::default();
    for name in ["FI_EFA_TIMEOUT_INTERVAL", "FI_EFA_TX_QUEUE_SIZE"] {
        assert_eq!(set(name, "0"), usual, "{name}: 0 is the default");
    }
}

#[test]
fn unknown_fi_efa_names_are_mistakes_and_other_names_are_ignored() {
    let environment =
        Environment::of([("FI_EFA_RUNTSIZE", "1"), ("FI_EFARS_X", "1"), ("FI_TCP_X", "1")]);
    let unknown = |name: &str| Mistake::Unknown { name: name.to_owned() };
    assert_eq!(environment.mistakes, [unknown("FI_EFA_RUNTSIZE"), unknown("FI_EFARS_X")]);
}

#[test]
fn parameters_are_sorted() {
    let is_of_link =
        |name: &str| name.starts_with("FI_EFARS_SHM_") || name.starts_with("FI_EFARS_TCP_");
    let name = |parameter: &Parameter| {
        (parameter.kind().is_none(), is_of_link(parameter.name), parameter.name)
    };
    assert!(Parameter::ALL.windows(2).all(|pair| name(&pair[0]) < name(&pair[1])));
    assert!(Parameter::ALL.iter().all(|parameter| parameter.name.starts_with("FI_")));
    assert!(Parameter::ALL.iter().all(|parameter| !parameter.help.is_empty()));
}

/// Fields that no parameter sets, and why: what the program, not its user, decides.
const NOT_SETTINGS: &[(&str, &str)] = &[
    ("endpoint.capabilities", "what the program does"),
    ("endpoint.transmit.", "what the program does"),
    ("endpoint.receive.", "what the program does"),
    ("endpoint.receiving", "what the program does"),
    ("endpoint.context", "a number of the program"),
    ("completion_queue.context", "a number of the program"),
    ("completion_queue.format", "what the program reads"),
    ("endpoint.connid", "random"),
    ("endpoint.hash_seed", "random"),
    ("endpoint.protocol.hash_seed", "ignored: random"),
    ("endpoint.protocol.first_msg_id", "both ends must agree"),
    ("endpoint.protocol.unexpected_header", "of programs that receive in place"),
    (
        "endpoint.protocol.profile.",
        "of the release that the program follows, except what can be switched",
    ),
    ("links.tcp.address", "of the entry"),
    ("links.tcp.scope_id", "of the address"),
    ("links.tcp.reorder", "of tests"),
    ("links.shm.faults.", "of tests"),
    ("links.shm.rdma.unsolicited_write_receive", "of Amazon's hardware"),
    ("links.tcp.rdma.unsolicited_write_receive", "of Amazon's hardware"),
    ("links.shm.capture", "what the program does"),
    ("links.tcp.capture", "what the program does"),
    ("mistakes", "a result"),
];

/// The fields of a value, as `{:#?}` prints them: path and value of each.
fn fields(value: &impl fmt::Debug) -> Vec<(String, String)> {
    let mut path: Vec<String> = Vec::new();
    let mut fields = Vec::new();
    for line in format!("{value:#?}").lines().skip(1) {
        let line = line.trim().trim_end_matches(',');
        match line.split_once(": ") {
            // A struct with fields; others, such as `Some(`, are values of several lines.
            Some((name, value)) if value.ends_with(" {") => path.push(name.to_owned()),
            Some((name, value)) => {
                fields.push(([&path[..], &[name.to_owned()]].concat().join("."), value.to_owned()))
            }
            None if line == "}" => drop(path.pop()),
            None => {}
        }
    }
    fields
}

// conformance: C35
#[test]
fn every_field_of_every_option_is_set_by_a_parameter_with_help() {
    let default = fields(&Environment::default());
    assert!(default.len() > 40, "{default:#?}");
    let mut missing: Vec<&String> = default.iter().map(|(path, _)| path).collect();
    missing.retain(|path| !NOT_SETTINGS.iter().any(|(name, _)| path.starts_with(name)));
    let count = missing.len();
    for parameter in Parameter::ALL {
        let values: &[&str] = match parameter.kind() {
            None => continue,
            Some(ParameterKind::Number { .. }) => &["0", "1", "2", "3"],
            Some(ParameterKind::PowerOfTwo { .. }) => &["1", "2"],
            Some(ParameterKind::Ports) => &["1"],
            Some(ParameterKind::Switch) => &["on", "off"],
            Some(ParameterKind::Choice(words)) => words,
            Some(ParameterKind::Names | ParameterKind::Text) => &["one"],
        };
        for value in values {
            let changed = fields(&set(parameter.name, value));
            missing.retain(|path| {
                let value = |of: &[(String, String)]| {
                    of.iter().find(|(name, _)| name == *path).map(|(_, value)| value.clone())
                };
                value(&changed) == value(&default)
            });
        }
        assert!(parameter.help.len() > 10, "{}", parameter.name);
    }
    assert!(count > 30, "{count} settings");
    assert_eq!(missing, Vec::<&String>::new(), "no parameter sets these, and they have no reason");
    // A reason without a field is out of date.
    for (name, reason) in NOT_SETTINGS {
        assert!(default.iter().any(|(path, _)| path.starts_with(name)), "{name}: {reason}");
    }
}
