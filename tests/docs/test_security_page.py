"""Each statement of docs/security.md has a test, and the test exists."""

import re

import yaml

from .pages import ROOT

# Words of each statement -> the functions that test it.
TESTS = yaml.safe_load("""
one process listens on no socket: [test_a_run_on_one_node_listens_on_loopback_and_one_process_on_nothing]
on the loopback interface only:
- test_a_run_on_one_node_listens_on_loopback_and_one_process_on_nothing
- test_ranks_of_one_node_meet_in_a_file_and_unpickle_nothing
at the address on the route:
- test_nodes_listen_at_the_address_of_the_rendezvous_and_execute_nothing
- test_ranks_of_one_node_meet_in_a_file_and_unpickle_nothing
prints at its start who: [test_nodes_listen_at_the_address_of_the_rendezvous_and_execute_nothing]
never unpickled:
- test_nodes_listen_at_the_address_of_the_rendezvous_and_execute_nothing
- test_ranks_of_one_node_meet_in_a_file_and_unpickle_nothing
The pods of a job: [test_several_nodes_are_a_trainjob_with_its_runtime, test_a_jobset_needs_no_kubeflow]
Of a checkpoint only: [test_code_is_never_run]
A damaged checkpoint:
- test_any_changed_bit_and_any_truncation_is_detected
- test_damaged_newer_files_are_skipped_and_printed
plain values only: [test_yaml_with_more_than_plain_values_is_refused, test_a_reference_can_only_refer_to_a_key]
A name in a bucket: [test_a_name_that_leads_out_is_refused, test_a_key_that_leads_out_of_the_run_folder_is_refused]
through a link: [test_a_run_folder_does_not_write_through_links]
Escape sequences: [test_escape_sequences_in_names_do_not_reach_the_terminal_but_programs_get_them]
A table of images: [test_a_table_may_list_any_file]
only if you have named it:
- test_only_the_code_of_the_run_that_was_named_here_runs
- test_a_run_folder_from_elsewhere_runs_nothing
Exactly the bytes:
- test_only_the_bytes_of_the_sha256_run
- test_what_is_changed_between_the_check_and_the_import_does_not_run
moved or copied: [test_a_moved_run_is_mirrored_only_if_that_is_typed_again]
execute no code of a run or a recipe:
- test_commands_that_show_runs_import_none_of_their_code
- test_a_task_and_an_architecture_of_the_user_are_shown_too
Code that a recipe names: [test_a_recipe_that_is_typed_names_code]
imports an installed package: [test_an_installed_package_brings_options]
replaces only a file:
  [test_a_file_replaces_no_other, test_a_folder_with_other_files_is_no_output, test_a_device_stays_one]
of the Hugging Face Hub:
- test_a_pushed_model_is_read_back_with_equal_bits_by_train_and_by_timm
- test_errors_of_the_hub_are_one_line
holds no code of this project: [test_an_export_has_two_files_for_everyone_and_a_card_that_describes_the_run]
no variable of the environment: [test_a_run_folder_contains_no_variable_of_the_environment]
No value with a credential: [test_a_run_does_not_store_a_credential]
no path and no account: [test_an_export_contains_no_place_and_no_account_of_the_run]
type no password: [test_what_is_typed_is_stored_in_the_run_folder_and_its_mirror]
""")


def test_each_statement_has_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    statements = re.findall(r"^- (.+(?:\n  .+)*)", page, re.MULTILINE)
    assert len(statements) == len(TESTS)
    for words in TESTS:
        assert len([one for one in statements if words in " ".join(one.split())]) == 1, words
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    functions = re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE)
    assert [name for names in TESTS.values() for name in names if functions.count(name) != 1] == []
