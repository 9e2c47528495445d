//! C programs on the provider: `tests/c`, compiled against Debian's libfabric. Each checks itself.
//!
//! Needs `cc` and the Debian package libfabric-dev. Without them the tests are skipped, or fail if `EFA_INTEROP=1` is
//! set. Then the programs also run under valgrind. With `EFA_INTEROP=0` all are skipped: they run in the step `provider` of
//! `cargo xtask test`, not in the step `tests` too.
//!
//! Valgrind gets the library that cargo builds with these tests, without optimisation. In an optimised one it finds
//! jumps on uninitialised values where LLVM looks at the value of an `Option` before it asks whether there is one.
//!
//! A program also runs on libfabric's own providers, to see whether it asks what libfabric does:
//!
//! ```sh
//! cc -D_GNU_SOURCE -o /tmp/programs crates/efa-provider/tests/c/*.c -lfabric -lpthread
//! PROVIDER=sockets /tmp/programs messages-tagged
//! ```

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A program takes a second or two on an idle machine.
const DEADLINE: Duration = Duration::from_secs(90);
/// A group of programs under valgrind takes half a minute.
const SLOW_DEADLINE: Duration = Duration::from_secs(600);
/// Wrong accesses and definite leaks, also of children.
const VALGRIND: [&str; 9] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=9",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    "--num-callers=30",
    "--fair-sched=yes",
    "--child-silent-after-fork=no",
];

/// What the tests have built.
#[derive(Clone)]
struct Built {
    programs: PathBuf,
    /// Counts allocations.
    steady: PathBuf,
    /// Has the device take long to register memory.
    slow: PathBuf,
    /// Of `FI_PROVIDER_PATH`.
    directory: PathBuf,
}

/// Compiles the programs and lays the library where libfabric finds it; `None` if packages are missing. Happens once, also
/// if it fails: then each test fails with what the compiler said.
fn built() -> Option<&'static Built> {
    static BUILT: OnceLock<Result<Option<Built>, String>> = OnceLock::new();
    BUILT.get_or_init(build).as_ref().unwrap_or_else(|error| panic!("{error}")).as_ref()
}

fn build() -> Result<Option<Built>, String> {
    if std::env::var_os("EFA_INTEROP").is_some_and(|value| value == "0") {
        eprintln!("skipped: EFA_INTEROP=0 says that another step runs them");
        return Ok(None);
    }
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let has_headers = Path::new("/usr/include/rdma/fi_domain.h").exists();
    let compiler = Command::new("cc").arg("--version").stdout(Stdio::null()).status();
    if !has_headers || !compiler.is_ok_and(|status| status.success()) {
        if is_asked_for() {
            return Err("cc or libfabric-dev is missing although EFA_INTEROP=1 is set".to_owned());
        }
        eprintln!("skipped: cc or libfabric-dev is not installed");
        return Ok(None);
    }

    let files = std::fs::read_dir(&sources).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "c"));
    let programs = compile(scratch.join("programs"), files)?;
    let steady = [sources.join("../steady/steady.c"), sources.join("program.c")];
    let steady = compile(scratch.join("steady"), steady.into_iter())?;
    let slow = [sources.join("../slow/slow.c"), sources.join("program.c")];
    let slow = compile(scratch.join("slow"), slow.into_iter())?;

    let directory = scratch.join("provider");
    std::fs::create_dir_all(&directory).unwrap();
    let new = scratch.join(format!("libefars-fi.so.{}", std::process::id()));
    std::fs::copy(library("libefars_fi.so"), &new).unwrap();
    std::fs::rename(&new, directory.join("libefars-fi.so")).unwrap();
    Ok(Some(Built { programs, steady, slow, directory }))
}

fn compile(program: PathBuf, files: impl Iterator<Item = PathBuf>) -> Result<PathBuf, String> {
    // Another run of these tests may use the file that is there.
    let new = program.with_extension(std::process::id().to_string());
    let output = Command::new("cc")
        .args(["-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror"])
        .arg("-o")
        .arg(&new)
        .args(files)
        .args(["-lfabric", "-lpthread"])
        .output()
        .unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    std::fs::rename(&new, &program).unwrap();
    Ok(program)
}

/// A library that cargo builds with these tests.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap();
    let library = [built, built.parent().unwrap()].map(|directory| directory.join(name));
    library.into_iter().find(|path| path.exists()).expect("the library was not built")
}

fn is_asked_for() -> bool {
    std::env::var_os("EFA_INTEROP").is_some_and(|value| value == "1")
}

/// A program and its children: a process group, killed when dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = libc::pid_t::try_from(self.0.id()).unwrap();
        // SAFETY: the group is that of a child which was not waited for or has just ended; it has no other members
        // than what the program started.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

/// Runs a program within its deadline; it must find nothing wrong.
fn run(built: &Built, wrapper: &[&str], program: &str, deadline: Duration) {
    let hosts = tempfile::TempDir::new().unwrap();
    let mut output = tempfile::NamedTempFile::new().unwrap();
    let copy = || -> File { output.reopen().unwrap() };
    let (out, err) = (copy(), copy());
    let mut words = wrapper.iter().map(|word| word.to_string());
    let mut command = match words.next() {
        Some(first) => {
            let mut command = Command::new(first);
            command.args(words).arg(&built.programs);
            command
        }
        None => Command::new(&built.programs),
    };
    // Of the user; the wrapper may set others.
    let settings = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    for name in settings.filter(|name| name.starts_with("FI_EFARS_") || name.starts_with("FI_EFA_"))
    {
        command.env_remove(name);
    }
    let child = command
        .arg(program)
        .env("FI_EFARS_DEVICE", "shm")
        // The device creates it, for this user alone.
        .env("FI_EFARS_SHM_DIRECTORY", hosts.path().join("hosts"))
        .env("PROVIDER", "efars")
        .env("FI_PROVIDER_PATH", &built.directory)
        .env_remove("FI_PROVIDER")
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0)
        .spawn()
        .unwrap();
    let mut group = Group(child);
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = group.0.try_wait().unwrap() {
            break Some(status);
        }
        if begun.elapsed() > deadline {
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut text = String::new();
    std::io::Read::read_to_string(output.as_file_mut(), &mut text).unwrap();
    let status = status.unwrap_or_else(|| panic!("{program} runs after {deadline:?}:\n{text}"));
    assert!(status.success(), "{program}: {status}\n{text}");
}

/// A test for each program, named by what the program finds.
macro_rules! programs {
    ($($name:ident $program:literal)*) => {
        $(
            #[test]
            fn $name() {
                check($program);
            }
        )*

        const PROGRAMS: &[&str] = &[$($program),*];
    };
}

programs! {
    entries_without_hints_are_of_this_provider_alone "discovery-no-hints"
    entry_given_as_hints_is_found_again_in_each_version "discovery-own-answer"
    endpoints_of_entries_of_each_version_exchange_messages "discovery-answers-open"
    search_for_an_unknown_host_fails_within_seconds "discovery-unknown-host"
    source_node_becomes_the_source_address "discovery-source-node"
    entry_names_the_open_fabric_and_domain_that_it_was_asked_for "discovery-open-objects"
    service_is_found_by_number_and_by_name "discovery-services"
    addresses_are_of_the_family_that_was_asked_for "discovery-families"
    search_with_bad_arguments_fails "discovery-bad-arguments"

    message_without_tag_arrives_in_each_form_of_each_size "messages-plain"
    message_with_tag_arrives_in_each_form_of_each_size "messages-tagged"
    message_longer_than_the_inject_size_is_not_injected "messages-inject-limit"
    messages_under_way_at_once_go_to_receives_in_order "messages-in-order"
    message_to_the_own_endpoint_arrives "messages-to-itself"
    message_longer_than_its_receive_is_truncated "messages-truncated"
    receive_takes_any_level_of_completion "messages-levels-of-receives"
    message_has_up_to_four_pieces_or_as_many_as_were_asked_for "messages-in-pieces"

    completion_of_a_receive_names_the_sender_if_it_is_known "matching-sources"
    receive_of_one_source_takes_no_message_of_another "matching-directed"
    receive_takes_the_first_message_whose_tag_matches "matching-tags"
    buffer_takes_messages_until_too_little_is_left "matching-multi-receive"
    buffer_takes_messages_if_default_flags_alone_ask_for_it "matching-many-by-flag-alone"
    cancelled_receive_fails_and_the_next_takes_the_message "matching-cancelled"
    message_is_peeked_at_claimed_received_and_discarded "matching-peek"

    receive_of_a_shared_context_takes_a_message_of_any_endpoint_and_completes_there "shared-receives"
    shared_context_refuses_receives_beyond_its_size_and_reports_cancelled_ones_to_the_first_endpoint "shared-limits"
    shared_context_outlives_endpoints_and_their_queues "shared-left"
    operations_of_endpoints_with_a_shared_context_start_up_to_its_size "shared-sends"
    endpoint_of_an_entry_with_shared_contexts_is_enabled_once_they_are_bound "shared-entries"

    entries_read_have_the_size_and_fields_of_their_format "completions-formats"
    queue_opened_without_a_format_has_the_smallest_entries "completions-unspecified-format"
    queue_of_both_directions_has_both_completions "completions-one-queue"
    operation_completes_selectively_if_it_asks_or_fails "completions-selective"
    default_flags_hold_for_calls_without_flags_alone "completions-default-flags"
    message_in_a_buffer_for_many_completes_selectively_if_it_asks "completions-many-selectively"
    operation_completes_at_the_level_that_was_asked_for "completions-levels"
    counter_counts_is_set_and_ends_waits "completions-counters"
    thread_that_waits_for_a_counter_is_woken_by_an_addition "completions-counter-woken"
    failure_behind_a_counter_is_found_without_a_read "completions-failure-behind-counter"
    queue_without_wait_object_takes_any_condition "completions-condition-of-nobody"
    full_queue_refuses_operations_and_loses_nothing "completions-full-queue"
    failure_has_a_text_that_fits_its_room "completions-failure-text"

    blocking_read_returns_at_a_completion_failure_or_timeout "waits-blocking-read"
    blocking_read_with_a_threshold_returns_that_many "waits-threshold"
    blocking_read_returns_at_a_signal "waits-signalled"
    queue_without_wait_object_refuses_to_wait "waits-no-wait-object"
    descriptor_wakes_a_thread_after_trywait "waits-descriptor"
    descriptor_of_a_counter_wakes_a_thread_after_trywait "waits-counter-descriptor"
    poll_set_names_queues_and_counters_with_news "waits-poll-set"
    wait_set_wakes_a_thread_for_any_of_its_queues "waits-wait-set"
    entry_that_the_provider_made_itself_forbids_to_sleep "waits-own-entries"
    event_that_was_peeked_at_forbids_to_sleep "waits-peeked-event"
    queue_or_counter_read_in_vain_again_and_again_yields_the_processor "waits-polls-in-vain"

    event_written_is_read_once_and_peeked_at_before "events-written"
    event_stays_if_there_is_too_little_room "events-too-small"
    event_queue_wakes_a_thread_by_read_and_descriptor "events-waited-for"
    insertion_with_an_event_queue_ends_with_its_event "events-insertion"
    insertion_with_an_event_queue_waits_for_no_server "events-insertion-of-nobody"
    event_queue_not_opened_for_writing_refuses_it "events-not-writable"
    event_queue_of_an_endpoint_has_an_error_for_an_operation_that_failed_after_it_completed "events-injected-failed"

    address_inserted_is_looked_up_and_removed_in_both_types "vectors-round-trip"
    message_goes_to_the_peer_of_its_entry_until_removal "vectors-messages-follow"
    address_of_no_peer_is_not_inserted "vectors-bad-name"
    servers_that_are_not_there_are_waited_for_together "vectors-nobody"
    vector_with_a_name_is_shared_between_processes "vectors-named"

    memory_is_registered_in_each_form_and_reached_by_its_key "regions-forms"
    key_is_the_one_that_the_program_chose "regions-chosen-keys"
    domain_without_remote_memory_takes_no_endpoint_with_chosen_keys "regions-keys-of-another-entry"
    messages_use_memory_named_by_its_descriptor "regions-descriptors"
    short_message_is_sent_whatever_its_descriptor_is "regions-undefined-descriptors"
    key_in_the_raw_form_gives_the_same_access "regions-raw-keys"
    operation_on_no_bytes_starts_with_a_descriptor_wherever_their_address_is "regions-nothing-described"
    memory_registered_for_sending_is_not_readable_on_shared_memory "regions-sent-from"
    access_that_a_region_does_not_allow_fails_and_touches_nothing "regions-refused-access"
    region_is_undisturbed_by_another_with_a_new_key "regions-many"

    write_and_read_of_each_form_and_size_reach_the_memory "rma-forms"
    write_and_read_reach_several_pieces_of_remote_memory "rma-pieces-there"
    bytes_are_there_when_a_delivery_complete_write_completes "rma-delivered"
    counters_count_the_writes_and_reads_of_their_endpoint "rma-counted"
    bytes_of_a_first_write_are_there_when_the_message_after_it_is "rma-before-message"

    atomic_of_each_form_operation_and_type_has_its_result "atomics-forms"
    atomic_on_no_element_completes_like_one_of_its_form "atomics-of-nothing"
    what_atomics_are_offered_is_told_and_holds "atomics-query"
    atomics_of_several_peers_on_one_number_lose_nothing "atomics-together"
    atomic_beyond_the_end_of_a_region_fails "atomics-refused-access"

    connection_made_by_sleeping_threads_is_reported_to_both "connections-waited-for"
    messages_over_a_connection_arrive_in_both_directions "connections-messages"
    message_is_answered_before_the_event_that_its_sender_is_connected "connections-answered-early"
    sides_of_a_connection_name_their_socket_addresses "connections-names"
    rejected_connection_reports_the_reason_and_data "connections-rejected"
    connection_to_nobody_is_refused "connections-refused-by-none"
    shutdown_and_close_reach_the_other_side "connections-shut-down"
    regions_are_closed_while_another_thread_shuts_down_a_connection_whose_peer_does_not_work "connections-shut-down-beside"
    connections_of_one_listener_keep_their_messages_apart "connections-several"
    connections_with_a_shared_context_take_its_receives_in_order "connections-shared-receives"
    operation_over_a_connection_completes_selectively_if_it_asks "connections-selective"
    private_data_arrives_up_to_the_limit_that_is_told "connections-most-data"
    call_out_of_turn_fails_and_the_listener_serves_on "connections-out-of-turn"

    option_of_an_endpoint_is_set_and_read_or_refused "settings-of-endpoints"
    default_flags_of_an_endpoint_are_told "settings-flags"
    as_many_operations_start_as_the_endpoint_says_are_left "settings-sizes-left"
    operations_of_a_direction_without_a_queue_are_counted "settings-only-counted"
    read_of_many_entries_ends_before_a_failure "settings-many-entries"
    entry_is_printed_with_the_names_of_its_values "settings-printed"

    capability_is_met_in_its_meaning_of_each_version_or_not_found "versions-bits"
    program_of_the_oldest_version_registers_by_words "versions-before-mode-bits"

    null_pointers_are_refused "refused-null-pointers"
    objects_of_another_class_are_refused "refused-wrong-class"
    objects_of_another_domain_are_refused "refused-other-domain"
    calls_on_closed_objects_fail "refused-closed-objects"
    object_that_others_use_is_not_closed "refused-in-use"
    more_pieces_or_bytes_than_the_limits_are_refused "refused-too-much"
    rnr_retries_beyond_the_most_or_once_enabled_are_refused "refused-retries"
    calls_not_offered_say_so "refused-not-offered"
    calls_that_fail_use_nothing_up "refused-many-failures"

    processes_exchange_messages_of_all_sizes "processes-two"
    child_of_a_fork_gets_errors_for_objects_of_its_parent "processes-inherited"
    child_of_a_fork_talks_to_its_parent_by_its_own_fabric "processes-child-of-its-own"
    peer_is_answered_while_its_program_does_not_call "processes-automatic"
    process_exits_with_objects_open_or_closes_them_at_exit "processes-exits"
    objects_are_closed_in_any_order_with_work_under_way "processes-any-order"
    messages_sent_before_a_close_arrive "processes-close-delivers"
    objects_opened_and_closed_again_leave_no_descriptor "processes-again"
    threads_sharing_an_endpoint_lose_and_reorder_nothing "processes-threads"

    threads_post_and_read_at_once_on_shared_endpoints "threads-both-ways"
    threads_open_and_close_objects_of_one_domain_at_once "threads-opening"
    object_that_a_thread_waits_for_is_not_closed "threads-waited-on"
    threads_get_errors_for_objects_that_are_closed_meanwhile "threads-closed-meanwhile"
    endpoint_that_two_threads_close_at_once_is_closed_by_one_of_them "threads-closed-by-two"
    regions_are_closed_while_another_thread_closes_an_endpoint_whose_peer_does_not_work "threads-closed-beside"
    objects_that_could_not_be_closed_beside_a_thread_that_is_held_in_a_call_are_closed_when_it_has_returned "threads-held"
    thread_that_is_cancelled_in_a_call_ends_after_it "threads-cancelled-in-calls"
    threads_of_the_library_block_the_signals_of_the_program "threads-signals"

    wait_set_knows_answers_failures_and_events_that_were_looked_at "sleepers-wait-set"
    thread_gets_its_event_after_another_peeked_at_it "sleepers-event-peeked"
    message_claimed_is_received_by_who_reads_the_answer "sleepers-claimed"
    event_of_a_new_vector_outlives_the_close_of_the_one_before "sleepers-vectors-closed"

    processes_reach_each_other_by_one_name_and_not_by_two "devices-names"
    processes_reach_each_other_between_addresses_over_tcp "devices-tcp"

    region_closed_and_unmapped_is_not_touched_by_peers "lifetimes-region-unmapped"
    receives_of_a_closed_endpoint_are_not_written_to "lifetimes-receives-unmapped"
    sends_of_a_closed_endpoint_are_not_touched "lifetimes-sends-unmapped"
    close_ends_soon_if_the_peer_never_answers "lifetimes-close-is-bounded"
    operations_under_way_on_a_closed_endpoint_have_no_completions "lifetimes-close-discards"
    provider_uses_the_libfabric_that_loaded_it_though_it_is_closed "libfabrics-two"
    library_stays_loaded_after_dlclose "lifetimes-unloaded"

    process_exits_from_destructors_handlers_and_beside_threads "exits-in-any-way"
}

/// The programs of requirements that only C programs can show.
const OF_ROWS: [&str; 6] = [
    "discovery-each-hint",
    "discovery-no-more-than-asked",
    "completions-context-blocks",
    "versions-lengths",
    "versions-tables",
    "refused-unknown-values",
];

fn check(program: &str) {
    if let Some(built) = built() {
        run(built, &[], program, DEADLINE);
    }
}

/// Runs a program on an EFA interface: the software device, preloaded.
fn check_on_interface(program: &str) {
    if let Some(built) = built() {
        run_on_interface(built, &[&library("libefa_soft.so")], program);
    }
}

fn run_on_interface(built: &Built, preloaded: &[&Path], program: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name, path: &Path| format!("{name}={}", path.display());
    let preloaded: Vec<_> = preloaded.iter().map(|path| path.display().to_string()).collect();
    let variables = [
        format!("LD_PRELOAD={}", preloaded.join(":")),
        path("EFA_SOFT_SYSFS", directory.path()),
        path("EFA_SOFT_DIRECTORY", &directory.path().join("hosts")),
    ];
    let mut wrapper = vec!["env", "FI_EFARS_DEVICE=verbs"];
    wrapper.extend(variables.iter().map(String::as_str));
    run(built, &wrapper, program, DEADLINE);
}

#[test]
fn close_takes_as_long_as_its_setting_says_if_the_peer_never_answers() {
    let Some(built) = built() else { return };
    for setting in ["FI_EFARS_CLOSE_TIMEOUT=100", "FI_EFARS_CLOSE_TIMEOUT=4000"] {
        run(built, &["env", setting], "lifetimes-close-is-bounded", DEADLINE);
    }
}

#[test]
fn addresses_are_of_the_family_that_was_asked_for_on_a_device_at_an_ipv4_address() {
    let Some(built) = built() else { return };
    run(built, &["env", "FI_EFARS_DEVICE=tcp:127.0.0.1"], "discovery-families", DEADLINE);
}

#[test]
fn memory_registered_for_sending_is_readable_on_an_interface_and_other_memory_is_not() {
    check_on_interface("regions-sent-from");
}

#[test]
fn objects_that_could_not_be_closed_beside_a_held_thread_are_closed_later_on_an_interface() {
    check_on_interface("threads-held");
}

#[test]
fn access_that_a_region_does_not_allow_fails_on_an_interface() {
    check_on_interface("regions-refused-access");
}

#[test]
fn write_and_read_of_each_form_and_size_reach_the_memory_on_an_interface() {
    check_on_interface("rma-forms");
}

// conformance: C11 C12
#[test]
fn hint_is_met_or_no_entry_is_returned_in_each_version() {
    check("discovery-each-hint");
}

// conformance: C14
#[test]
fn entry_has_no_capability_or_mode_that_was_not_asked_for() {
    check("discovery-no-more-than-asked");
}

// conformance: C28
#[test]
fn structures_of_each_version_are_not_touched_beyond_their_end() {
    check("versions-lengths");
}

// conformance: C28
#[test]
fn table_of_each_object_says_its_size() {
    check("versions-tables");
}

// conformance: C12
#[test]
fn context_blocks_that_a_program_would_lend_are_not_touched() {
    check("completions-context-blocks");
}

// conformance: C105
#[test]
fn indices_and_flags_that_there_are_not_are_refused() {
    check("refused-unknown-values");
}

/// A test for each group of programs. They take minutes, so `EFA_INTEROP=1` asks for them.
macro_rules! groups {
    ($($name:ident $group:literal)*) => {
        $(
            #[test]
            fn $name() {
                if !is_asked_for() {
                    return eprintln!("skipped: runs with EFA_INTEROP=1");
                }
                if let Some(built) = built() {
                    run(built, &VALGRIND, $group, SLOW_DEADLINE);
                }
            }
        )*

        const GROUPS: &[&str] = &[$($group),*];
    };
}

groups! {
    valgrind_finds_no_mistake_in_discovery "discovery"
    valgrind_finds_no_mistake_in_messages "messages"
    valgrind_finds_no_mistake_in_matching "matching"
    valgrind_finds_no_mistake_in_shared_contexts "shared"
    valgrind_finds_no_mistake_in_completions "completions"
    valgrind_finds_no_mistake_in_waits "waits"
    valgrind_finds_no_mistake_in_events "events"
    valgrind_finds_no_mistake_in_vectors "vectors"
    valgrind_finds_no_mistake_in_regions "regions"
    valgrind_finds_no_mistake_in_rma "rma"
    valgrind_finds_no_mistake_in_atomics "atomics"
    valgrind_finds_no_mistake_in_connections "connections"
    valgrind_finds_no_mistake_in_settings "settings"
    valgrind_finds_no_mistake_for_other_versions "versions"
    valgrind_finds_no_mistake_in_bad_input "refused"
    valgrind_finds_no_mistake_between_processes "processes"
    valgrind_finds_no_mistake_between_threads "threads"
    valgrind_finds_no_mistake_at_ends "lifetimes"
    valgrind_finds_no_mistake_at_exit "exits"
    valgrind_finds_no_mistake_with_sleepers "sleepers"
    valgrind_finds_no_mistake_on_devices "devices"
}

#[test]
fn sends_receives_injected_operations_and_reads_allocate_nothing_after_some_rounds() {
    let Some(built) = built() else { return };
    let counted = Built { programs: built.steady.clone(), ..built.clone() };
    run(&counted, &[], "steady", DEADLINE);
}

#[test]
fn objects_are_closed_while_the_device_takes_long_to_register_memory_of_another_thread() {
    let Some(built) = built() else { return };
    let (device, registration) =
        (library("libefa_soft.so"), built.slow.with_file_name("registration.so"));
    let status = Command::new("cc")
        .args(["-std=gnu11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o"])
        .arg(&registration)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slow/registration.c"))
        .arg(&device)
        .status();
    assert!(status.unwrap().success());
    let slow = Built { programs: built.slow.clone(), ..built.clone() };
    run_on_interface(&slow, &[&registration, &device], "slow");
}

/// Every program has a test, also under valgrind.
#[test]
fn list_of_tests_names_every_program() {
    let Some(built) = built() else { return };
    let listed = Command::new(&built.programs).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let programs = [PROGRAMS, &OF_ROWS].concat();
    let missing: Vec<_> = listed.lines().filter(|name| !programs.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(listed.lines().count(), programs.len());
    // Not under valgrind: a libfabric that is unloaded leaves memory of its own behind.
    let groups = [GROUPS, &["libfabrics"]].concat();
    let has_group = |name: &&str| groups.contains(&name.split('-').next().unwrap());
    assert_eq!(programs.iter().find(|name| !has_group(name)), None);
}
