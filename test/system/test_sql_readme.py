"""sql/README.md and the contract for applications: each heading has the tests that show its statements, and the SQL runs as it is written."""

import glob
import os
import re
import uuid

import pytest

from rig import inbox_sql, schema
from test_trust import Ground, run

CONTRACT = "deploy/guides/application.md"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The tests that show what the page states, by its headings.
EVIDENCE = {
    "What `migrate` and `check --connect` refuse": """
        test_a_schema_that_somebody_made_first_is_not_adopted test_nothing_of_such_a_schema_is_run
        test_a_schema_in_more_than_one_hand_is_refused test_the_remedy_that_is_named_is_one test_a_superuser_as_owner_is_a_warning
        test_an_application_that_is_the_owner_is_a_warning test_who_else_may_change_rows_is_a_warning
        test_who_may_do_so_by_a_column_or_a_foreign_key_is_a_warning_too
        test_default_privileges_of_the_owner_let_nobody_into_a_new_schema test_an_owner_behind_a_role_option_is_the_one_who_counts""",
    "Publisher": """
        test_ids_that_need_quoting_in_every_layer test_bodies_with_every_byte_value
        test_one_id_with_two_bodies_the_second_is_dead_with_both_fingerprints
        test_one_impossible_message_among_500_good_ones_dies_alone test_a_count_that_the_publisher_wrote_is_not_believed""",
    "Application": """
        test_a_token_completes_once test_the_same_token_in_two_concurrent_transactions_is_one_effect
        test_after_the_takeover_complete_raises_and_the_late_writes_are_gone test_a_lost_token_tells_nothing_about_the_row
        test_damaged_tokens_raise_nothing_else test_a_row_that_stays_locked_is_named_with_its_holder_in_each_interval
        test_the_applications_words_stay_in_the_row_and_the_letter_and_never_come_into_the_log""",
    "Application's database role": """
        test_an_application_may_do_nothing_else test_public_may_do_nothing test_a_callers_search_path_changes_nothing
        test_the_settings_of_the_session_change_no_answer test_a_row_that_a_prepared_transaction_holds_is_said_with_its_name""",
    "Sidecar's role": """
        test_a_sidecar_may_change_the_rows_and_read_the_letters_of_every_consumer test_the_sidecar_has_no_ddl
        test_a_sidecar_does_not_see_other_sessions_unless_somebody_lets_it""",
    "Operator": """
        test_redrive_finds_the_id_that_was_there_all_the_time test_what_changes_letters_leaves_those_of_other_configurations
        test_orphans_are_removed_by_whoever_wants_it test_migrate_as_somebody_who_may_not_changes_nothing_and_says_why""",
    "Owner": """
        test_all_of_it_belongs_to_a_role_that_is_no_superuser""",
    "Another team in the database": """
        test_another_team_sees_and_changes_nothing test_another_teams_advisory_locks_stop_nothing
        test_a_schema_that_somebody_made_first_is_not_adopted test_nothing_of_such_a_schema_is_run
        test_a_schema_in_more_than_one_hand_is_refused test_an_extension_that_another_team_puts_there_is_one_line_with_its_remedy
        test_default_privileges_of_the_owner_give_nobody_a_trigger""",
    "Clocks": """
        test_nothing_is_forgotten_because_of_one_clock test_what_is_old_must_be_old_by_both_clocks
        test_a_clock_that_jumps_past_the_retention_makes_the_inbox_forget_nothing
        test_a_clock_that_was_set_back_makes_nobody_wait_for_a_holder_that_is_gone
        test_a_replay_goes_on_with_what_arrives_behind_a_clock_that_was_set_back
        test_an_export_goes_on_where_the_last_one_ended_though_the_clock_was_set_back
        test_a_token_that_ends_in_more_than_a_week_ends_with_the_longest_window""",
    "Stored messages": """
        test_only_what_is_new_is_stored test_retries_and_copies_store_nothing_more test_nothing_is_done_because_of_one_clock
        test_the_longest_retention_counts_for_all test_who_stores_no_more_keeps_what_was_promised_and_no_longer
        test_bodies_of_some_kib_stay_in_their_rows_compressed_where_the_server_can""",
    "Locks on stored messages": """
        test_beside_a_large_default_partition_days_are_made_one_a_call_and_not_among_claims
        test_days_beside_a_large_default_partition_are_made_and_claims_go_on test_taking_a_day_out_does_not_wait_for_the_disk
        test_claims_go_on_while_a_day_is_dropped test_a_reader_keeps_its_day_and_claims_wait_for_50_ms_at_most
        test_a_table_that_somebody_took_out_himself_stays
        test_a_day_of_today_that_somebody_took_out_keeps_no_other_from_being_made
        test_a_detach_that_did_not_end_is_told_and_keeps_no_other_day""",
    "The compact history": """
        test_a_used_token_is_unknown_after_the_move_and_says_so test_another_body_under_a_moved_id_is_a_mismatch
        test_a_letter_whose_message_was_completed_and_moved_is_done
        test_every_function_that_inserts_into_the_inbox_has_both_lookups test_a_claim_that_is_older_than_a_move_is_repeated
        test_less_than_an_hour_counts_as_an_hour test_nothing_is_moved_or_expires_while_the_clocks_differ
        test_of_replicas_with_two_retentions_the_longer_one_counts test_an_hour_in_which_no_house_was_kept_does_not_count
        test_off_moves_nothing_and_what_was_moved_stays_known test_each_consumer_has_its_own_retention""",
    "Versions": """
        test_two_versions_run_side_by_side_on_the_newer_schema test_a_schema_that_serves_no_older_programs_refuses_them""",
}


def page(path="sql/README.md"):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def statements(marker, path="sql/README.md"):
    return re.search(rf"<!-- {marker} -->\n```sql\n(.*?)```", page(path), re.S).group(1)


def parties():
    """Name and text of each party."""
    part = re.search(r"<!-- parties -->\n(.*?)<!-- /parties -->", page(), re.S).group(1)
    return re.findall(r"^### (.*?)\n\n(.*?)(?=^### |\Z)", part, re.S | re.M)


def test_each_heading_of_the_evidence_has_tests_that_exist():
    there = set()
    for path in glob.glob(os.path.join(ROOT, "test", "system", "*.py")):
        with open(path, encoding="utf-8") as f:
            there |= set(re.findall(r"^def (test_\w+)\(", f.read(), re.M))
    headings = set(re.findall(r"^##+ (.*)$", page(), re.M))
    assert set(EVIDENCE) <= headings, set(EVIDENCE) - headings
    named = {name for names in EVIDENCE.values() for name in names.split()}
    assert len(named) > 60 and named <= there, f"named, and not there: {sorted(named - there)}"


def test_each_party_has_what_it_can_what_it_cannot_and_a_test():
    found = parties()
    assert len(found) >= 7
    for name, text in found:
        assert re.search(r"^- \*\*Can.*^- \*\*Cannot\*\* ", text, re.S | re.M) and EVIDENCE.get(name), name


def test_each_function_has_its_place_in_the_table():
    table = page().split("## Functions\n")[1]
    files = {os.path.basename(path)[:-4] for path in glob.glob(os.path.join(ROOT, "sql", "functions", "*.sql"))}
    listed = set(re.findall(r"`(\w+)`", table.split("Each is a file")[0]))
    assert listed == files


@pytest.fixture
def ground(raw_postgres, tmp_path):
    database = raw_postgres.create_database(f"page_{uuid.uuid4().hex[:8]}")
    made = Ground(tmp_path, database)
    yield made
    made.deinit()
    raw_postgres.query(f'DROP DATABASE "{database.database}" WITH (FORCE)', database="postgres")


def test_a_schema_of_a_superuser_gets_an_owner_as_it_is_written(ground):
    """With another name in the owner's place: the other tests' owner is the servers'."""
    owner = "owner_" + uuid.uuid4().hex[:8]
    schema.migrate(ground.postgres, user="postgres")
    assert ground.check()["warn"]
    try:
        ground.postgres.query(statements("owner").replace("onceward_owner", owner)
                              .replace("DATABASE app", f'DATABASE "{ground.postgres.database}"'))
        checked = ground.check()
        assert not checked["warn"] and not checked["FAIL"], checked
        assert any(f"belong to {owner}," in line for line in checked["ok"]), checked
        assert ground.migrate(owner).returncode == 0
        done = ground.migrate("postgres")
        assert done.returncode == 1 and f"belongs to {owner}" in done.text, done.text
    finally:
        ground.postgres.query(f"REASSIGN OWNED BY {owner} TO postgres; DROP OWNED BY {owner}; DROP ROLE {owner}")


def test_where_the_roles_are_there_the_owner_needs_nothing_else(ground):
    """A managed service: no superuser, no CREATEROLE, a login that is a member of the owner."""
    owner = "owner_" + uuid.uuid4().hex[:8]
    schema.make_roles(ground.postgres)
    ground.postgres.query(f"CREATE ROLE {owner}")
    ground.postgres.query(f"GRANT {owner} TO {ground.mallory}")
    try:
        ground.postgres.query(statements("managed").replace("onceward_owner", owner)
                              .replace("DATABASE app", f'DATABASE "{ground.postgres.database}"'))
        url = ground.postgres.dsn(user=ground.mallory, options=f"-crole%3D{owner}")
        done = run("migrate", "--config", ground._path("sidecar_login"), "--database", url)
        assert done.returncode == 0 and "may not create roles" not in done.text and "was created" in done.text, done.text
        checked = ground.check()
        assert not checked["warn"] and not checked["FAIL"], checked
    finally:
        ground.postgres.query(f"DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}")


@pytest.mark.parametrize("marker", ["batch all", "batch valid"])
def test_the_statements_of_a_batch_do_both_or_neither(raw_postgres, marker):
    database = raw_postgres.create_database(f"page_{uuid.uuid4().hex[:8]}")
    inbox_sql.load(database)
    database.query("CREATE TABLE charges (order_id text, cents integer); GRANT SELECT, INSERT ON charges TO app_login")
    inbox, app = inbox_sql.Inbox(database, "orders"), inbox_sql.Application(database)
    inbox.claim("a", "b")
    for n, statement in enumerate(s for s in statements(marker, CONTRACT).split(";") if s.strip() and s.strip() not in ("BEGIN", "COMMIT")):
        app.query(f"PREPARE p{n} AS {statement}")
    tokens = [inbox.token("a"), inbox.token("b")]
    for n, in app.query("SELECT name FROM pg_prepared_statements ORDER BY name"):
        arguments = ([tokens], [["a", "b"], [1, 2]])[int(n[1:])] if marker == "batch all" else [tokens, ["a", "b"], [1, 2]]
        app.query(f"EXECUTE {n} ({', '.join('%s' for _ in arguments)})", *arguments)
    assert sorted(map(tuple, app.query("SELECT * FROM charges"))) == [("a", 1), ("b", 2)]
    assert {inbox.row(i).status for i in "ab"} == {"completed"}
    inbox.close()
    app.close()
