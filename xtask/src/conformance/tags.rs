//! Finding `// conformance: A36 A37` lines and the tests below them.
//!
//! The comment lines are read from the text. What stands below comes from the compiler's
//! own lexer (proc-macro2), so that attributes of any length, doc comments, modules,
//! strings and the inside of `proptest!` are recognised.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::checklist::RowId;

/// Where tests are.
const ROOTS: [&str; 4] = ["crates", "fuzz", "tests", "xtask"];
/// A line that starts like this is a tag.
const TAG: &str = "// conformance:";

/// A test and the rows that one tag above it names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TaggedTest {
    /// `efa_proto::eager::tests::round_trip`
    pub(crate) path: String,
    /// From the root of the repository, with forward slashes.
    pub(crate) file: String,
    pub(crate) rows: Vec<RowId>,
}

/// A tag that is invalid by its form or place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MisplacedTag {
    file: String,
    line: usize,
    problem: &'static str,
}

/// The tags of all sources.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    pub(crate) tests: Vec<TaggedTest>,
    pub(crate) misplaced: Vec<MisplacedTag>,
}

impl fmt::Display for MisplacedTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.problem)
    }
}

/// Reads all Rust sources below `root` that may hold tests.
pub(crate) fn collect(root: &Path) -> Result<Tags> {
    let mut files = Vec::new();
    for directory in ROOTS.map(|name| root.join(name)) {
        if directory.is_dir() {
            list_sources(&directory, &mut files)?;
        }
    }
    files.sort();
    let mut tags = Tags::default();
    for file in files {
        let at_file = || format!("cannot read {}", file.display());
        let text = std::fs::read_to_string(&file).with_context(at_file)?;
        // Most files have no tag, and lexing is the slow part.
        if text.contains(TAG) {
            let relative = file.strip_prefix(root).with_context(at_file)?;
            tags.read_source(relative, &text)?;
        }
    }
    Ok(tags)
}

fn list_sources(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let at_directory = || format!("cannot read {}", directory.display());
    for entry in std::fs::read_dir(directory).with_context(at_directory)? {
        let path = entry.with_context(at_directory)?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                list_sources(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

impl Tags {
    fn read_source(&mut self, file: &Path, text: &str) -> Result<()> {
        let name = file.components().map(|part| part.as_os_str().to_string_lossy());
        let name = name.collect::<Vec<_>>().join("/");
        let tokens: TokenStream =
            text.parse().map_err(|error| anyhow!("{name} is not Rust: {error}"))?;
        let mut source = Source::default();
        source.walk(tokens, &module_of(&name));

        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let Some(ids) = line.trim_start().strip_prefix(TAG) else { continue };
            if source.in_literal(number) {
                continue;
            }
            let Ok(rows) = ids.split_whitespace().map(str::parse).collect::<Result<Vec<RowId>>>()
            else {
                self.misplaced(&name, number, "a tag is `// conformance: A36 A37`, rows only");
                continue;
            };
            if rows.is_empty() {
                self.misplaced(&name, number, "a tag must name a row");
                continue;
            }
            match source.function_below(number) {
                None => self.misplaced(&name, number, "a tag must stand directly above a test"),
                Some(function) if !function.is_test => {
                    self.misplaced(&name, number, "the function below is not a test");
                }
                Some(function) if function.is_ignored => {
                    self.misplaced(&name, number, "the test below is ignored, so it shows nothing");
                }
                Some(function) => self.tests.push(TaggedTest {
                    path: function.path.clone(),
                    file: name.clone(),
                    rows,
                }),
            }
        }
        Ok(())
    }

    fn misplaced(&mut self, file: &str, line: usize, problem: &'static str) {
        self.misplaced.push(MisplacedTag { file: file.to_owned(), line, problem });
    }
}

/// The path that tests of a file have in cargo's output, with the package in front:
/// `crates/efa-proto/src/req/mod.rs` is `efa_proto::req`; an integration test is a crate
/// of its own, so `crates/efa-rdm/tests/eager.rs` is `efa_rdm/eager`.
fn module_of(file: &str) -> String {
    let parts: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
    let (package, inside) = match parts.as_slice() {
        ["crates", package, rest @ ..] => (package.replace('-', "_"), rest),
        [root, rest @ ..] => ((*root).to_owned(), rest),
        [] => (String::new(), [].as_slice()),
    };
    let (separator, modules) = match inside {
        ["src", modules @ ..] => ("::", modules),
        [_, modules @ ..] if !modules.is_empty() => ("/", modules),
        other => ("/", other),
    };
    let modules: Vec<&str> =
        modules.iter().copied().filter(|name| !["lib", "main", "mod"].contains(name)).collect();
    if modules.is_empty() { package } else { format!("{package}{separator}{}", modules.join("::")) }
}

/// A function, or a fuzz target, which is a test without a name of its own.
#[derive(Debug)]
struct Function {
    path: String,
    /// Line of its first attribute, or of its own first word.
    first_line: usize,
    /// Line of its name.
    name_line: usize,
    is_test: bool,
    is_ignored: bool,
}

/// What the lexer says of a file.
#[derive(Debug, Default)]
struct Source {
    functions: Vec<Function>,
    /// The line of each token, doc comments included and other comments not.
    token_lines: Vec<usize>,
    /// First and last line of literals that go over several lines.
    long_literals: Vec<(usize, usize)>,
}

/// What was seen of an item before its name.
#[derive(Default)]
struct Prelude {
    first_line: Option<usize>,
    is_test: bool,
    is_ignored: bool,
}

impl Source {
    fn walk(&mut self, tokens: TokenStream, module: &str) {
        let mut prelude = Prelude::default();
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            let line = token.span().start().line;
            self.token_lines.push(line);
            match token {
                TokenTree::Punct(hash) if hash.as_char() == '#' => {
                    prelude.first_line.get_or_insert(line);
                    if let Some(TokenTree::Group(attribute)) = tokens.peek() {
                        prelude.attribute(attribute);
                    }
                }
                TokenTree::Ident(word) if word == "fn" => {
                    if let Some(TokenTree::Ident(name)) = tokens.peek() {
                        self.functions.push(Function {
                            path: format!("{module}::{name}"),
                            first_line: prelude.first_line.unwrap_or(line),
                            name_line: name.span().start().line,
                            is_test: prelude.is_test,
                            is_ignored: prelude.is_ignored,
                        });
                    }
                    prelude = Prelude::default();
                }
                TokenTree::Ident(word) if word == "mod" => {
                    if let Some(TokenTree::Ident(name)) = tokens.next() {
                        self.token_lines.push(name.span().start().line);
                        if let Some(TokenTree::Group(body)) = tokens.peek() {
                            let body = body.stream();
                            tokens.next();
                            self.walk(body, &format!("{module}::{name}"));
                        }
                    }
                    prelude = Prelude::default();
                }
                TokenTree::Ident(word) => {
                    let first_line = *prelude.first_line.get_or_insert(line);
                    if word == "fuzz_target" {
                        self.functions.push(Function {
                            path: module.to_owned(),
                            first_line,
                            name_line: line,
                            is_test: true,
                            is_ignored: false,
                        });
                    }
                }
                TokenTree::Group(group) => {
                    self.walk(group.stream(), module);
                    if group.delimiter() == Delimiter::Brace {
                        prelude = Prelude::default();
                    }
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => prelude = Prelude::default(),
                TokenTree::Punct(_) => {}
                TokenTree::Literal(literal) => {
                    let end = literal.span().end().line;
                    if end > line {
                        self.long_literals.push((line, end));
                    }
                }
            }
        }
    }

    fn in_literal(&self, line: usize) -> bool {
        self.long_literals.iter().any(|&(first, last)| first < line && line <= last)
    }

    /// The function that the first token below this line belongs to the head of.
    fn function_below(&self, line: usize) -> Option<&Function> {
        let next = self.token_lines.iter().copied().filter(|&token| token > line).min()?;
        self.functions
            .iter()
            .find(|function| function.first_line <= next && next <= function.name_line)
    }
}

impl Prelude {
    fn attribute(&mut self, attribute: &Group) {
        // The last word of the attribute's path: `test` of `#[test]` and `#[rt::test]`.
        let name = attribute
            .stream()
            .into_iter()
            .take_while(|token| match token {
                TokenTree::Ident(_) => true,
                TokenTree::Punct(punct) => punct.as_char() == ':',
                TokenTree::Group(_) | TokenTree::Literal(_) => false,
            })
            .filter(|token| matches!(token, TokenTree::Ident(_)))
            .last()
            .map(|name| name.to_string());
        match name.as_deref() {
            Some("test") => self.is_test = true,
            Some("ignore") => self.is_ignored = true,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "crates/efa-proto/src/eager.rs";

    fn read(text: &str) -> Tags {
        let mut tags = Tags::default();
        tags.read_source(Path::new(FILE), text).unwrap();
        tags
    }

    /// `path: rows` of each tagged test.
    fn tests(text: &str) -> Vec<String> {
        let tags = read(text);
        assert_eq!(tags.misplaced, []);
        let rows = |rows: &[RowId]| rows.iter().map(RowId::to_string).collect::<Vec<_>>().join(" ");
        tags.tests.iter().map(|test| format!("{}: {}", test.path, rows(&test.rows))).collect()
    }

    fn problem(text: &str) -> String {
        let tags = read(text);
        assert_eq!(tags.tests, []);
        assert_eq!(tags.misplaced.len(), 1, "{:?}", tags.misplaced);
        tags.misplaced[0].to_string()
    }

    #[test]
    fn test_name_has_its_modules() {
        let text = "#[cfg(test)]\nmod tests {\n    mod inner {\n        // conformance: A1 A22\n        \
                    #[test]\n        fn short() {}\n    }\n    // conformance: A2\n    #[test]\n    fn after() {}\n}\n";
        assert_eq!(
            tests(text),
            ["efa_proto::eager::tests::inner::short: A1 A22", "efa_proto::eager::tests::after: A2"]
        );
    }

    #[test]
    fn attributes_comments_and_keywords_may_follow_a_tag() {
        let text = "// conformance: A3\n/// Says what it shows.\n// And why.\n\n#[test]\n\
                    #[should_panic(\n    expected = \"fn not_this() {\"\n)]\npub(crate) async fn long() {}\n";
        assert_eq!(tests(text), ["efa_proto::eager::long: A3"]);
    }

    #[test]
    fn tag_may_follow_the_test_attribute() {
        assert_eq!(
            tests("#[test]\n// conformance: A3\nfn below() {}"),
            ["efa_proto::eager::below: A3"]
        );
    }

    #[test]
    fn several_tag_lines_of_a_test_add_up() {
        let text = "// conformance: A1\n// conformance: B2 C3\n#[test]\nfn all() {}\n\
                    // conformance: A4\n#[test]\nfn one() {}\n";
        assert_eq!(
            tests(text),
            [
                "efa_proto::eager::all: A1",
                "efa_proto::eager::all: B2 C3",
                "efa_proto::eager::one: A4"
            ]
        );
    }

    #[test]
    fn tests_inside_proptest_are_found() {
        let text = "proptest! {\n    #![proptest_config(Config::default())]\n\n    /// Any length.\n    \
                    // conformance: A109\n    #[test]\n    fn tiles(length in 0usize..9, x in any::<u8>()) {\n    }\n}\n";
        assert_eq!(tests(text), ["efa_proto::eager::tiles: A109"]);
    }

    #[test]
    fn fuzz_target_counts_as_test_with_its_file_name() {
        let mut tags = Tags::default();
        let text =
            "#![no_main]\n// conformance: A222\nlibfuzzer_sys::fuzz_target!(|data: &[u8]| {});\n";
        tags.read_source(Path::new("fuzz/fuzz_targets/parse.rs"), text).unwrap();
        assert_eq!(tags.misplaced, []);
        assert_eq!(tags.tests[0].path, "fuzz/parse");
    }

    #[test]
    fn tag_text_in_strings_is_ignored() {
        let text = "const A: &str = r#\"\n// conformance: A1\n#[test]\nfn no() {}\n\"#;\n\
                    const B: &str = \"\\n// conformance: A1\";\n";
        assert_eq!(tests(text), [""; 0]);
    }

    #[test]
    fn tag_must_be_directly_above_a_test_that_runs() {
        assert_eq!(
            problem("// conformance: A1\nconst X: u8 = 0;\n#[test]\nfn later() {}\n"),
            "crates/efa-proto/src/eager.rs:1: a tag must stand directly above a test"
        );
        assert!(problem("// conformance: A1\n").ends_with("directly above a test"));
        assert!(
            problem("// conformance: A1\nmod tests {\n#[test]\nfn inside() {}\n}")
                .ends_with("directly above a test")
        );
        assert!(
            problem("#[test]\nfn a() {}\n\n// conformance: A1\nfn helper() {}\n")
                .ends_with(":4: the function below is not a test")
        );
        assert!(
            problem("// conformance: A1\n#[test]\n#[ignore = \"slow\"]\nfn a() {}\n")
                .ends_with("ignored, so it shows nothing")
        );
        assert!(
            problem("fn a() {\n    // conformance: A1\n    let x = 1;\n}\n")
                .ends_with("directly above a test")
        );
    }

    #[test]
    fn tag_with_other_words_is_an_error() {
        assert!(problem("// conformance: A1, A2\n#[test]\nfn a() {}\n").ends_with("rows only"));
        assert!(problem("// conformance:\n#[test]\nfn a() {}\n").ends_with("must name a row"));
    }

    #[test]
    fn only_its_own_attribute_ignores_a_test() {
        let text = "#[ignore]\n#[test]\nfn other() {}\n// conformance: A1\n#[test]\nfn a() {}\n";
        assert_eq!(tests(text), ["efa_proto::eager::a: A1"]);
    }

    #[test]
    fn test_paths_are_those_that_cargo_test_prints() {
        for (file, module) in [
            ("crates/efa-proto/src/lib.rs", "efa_proto"),
            ("crates/efa-proto/src/req/mod.rs", "efa_proto::req"),
            ("crates/efa-proto/src/req/eager.rs", "efa_proto::req::eager"),
            ("crates/efa-rdm/tests/eager.rs", "efa_rdm/eager"),
            ("crates/efa-rdm/tests/protocol/main.rs", "efa_rdm/protocol"),
            ("crates/efa-cli/src/main.rs", "efa_cli"),
            ("fuzz/fuzz_targets/parse.rs", "fuzz/parse"),
            ("tests/interop.rs", "tests/interop"),
        ] {
            assert_eq!(module_of(file), module, "{file}");
        }
    }

    #[test]
    fn file_that_does_not_parse_is_named() {
        let error = Tags::default().read_source(Path::new(FILE), "fn (").unwrap_err();
        assert!(error.to_string().starts_with("crates/efa-proto/src/eager.rs is not Rust"));
    }
}
