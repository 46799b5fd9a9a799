"""Which rows of the mission the store suite shows: the suite is shipped, its marks are ours."""

import pytest

SHOWN = {
    "test_last_reply_wakes_the_run_with_all_results": ("S0-017", "S0-018", "X-014"),
    "test_second_answer_is_told_who_was_first": ("S0-044", "X-003"),
    "test_overdue_waits_expire_in_order_and_count_as_settled": ("S0-088", "S0-114", "X-005"),
    "test_reply_that_comes_before_the_run_suspends_is_not_lost": ("S0-106",),
    "test_cancelling_a_run_cancels_its_waits": ("S0-051",),
    "test_every_version_loads_as_it_was_saved": ("S4-017", "S4-042", "X-008"),
    "test_supported_values_come_back_equal": ("S3-101", "S3-102", "S3-189"),
    "test_value_above_the_limit_is_refused_and_nothing_is_lost": ("S3-195",),
    "test_whole_state_is_stored_as_what_differs": ("S1-084",),
    "test_loading_reads_at_most_a_few_times_what_is_alive": ("S1-080",),
    "test_reindex_gives_the_rows_that_were_there": ("S3-009", "S3-088"),
    "test_rows_of_records_follow_their_entries": ("S3-157",),
    "test_intent_is_on_record_before_and_the_result_after": ("S4-043", "S4-045"),
    "test_completed_effect_gives_its_stored_result_to_a_repeat": ("S4-046",),
    "test_effect_of_a_lost_worker_is_unknown_only_after_its_limit": ("S4-046",),
    "test_what_is_not_there_is_said_clearly": ("S4-044",),
    "test_history_is_newest_first_and_paged": ("X-007",),
    "test_takeover_fences_the_former_holder": ("X-013", "X-014"),
    "test_expired_lease_makes_the_run_ready_and_fences": ("X-013", "X-014"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        ids = SHOWN.get(getattr(item, "originalname", ""))
        if ids and "contract" in item.nodeid:
            item.add_marker(pytest.mark.mission(*ids))
