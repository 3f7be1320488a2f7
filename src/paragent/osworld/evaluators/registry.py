"""Registries of OSWorld's getters and metrics, why some are not supported, and the functions that child processes call."""

from __future__ import annotations

import os
from typing import Any

from paragent._internal.registry import Implementation, Registry, import_object, import_required
from paragent.osworld.evaluators.supported import check_options, check_rules

__all__ = [
    "ACCOUNTS",
    "GETTERS",
    "INFEASIBLE",
    "LEFT_OUT",
    "METRICS",
    "STRICT",
    "load_metric",
    "load_parser",
    "parse",
    "score",
]


INFEASIBLE = "infeasible"
"""The metric of infeasible tasks; it depends only on the agent's last action."""
_EXTRA = "osworld"
_HERE = "paragent.osworld.evaluators"


def _implementations(folder: str, modules: dict[str, str], extra: str | None = None) -> dict[str, Implementation]:
    """Return the implementations in one folder, given the names that each of its modules defines."""
    return {
        name: Implementation(f"{_HERE}.{folder}.{module}:{name}", extra)
        for module, names in modules.items()
        for name in names.split()
    }


GETTERS = Registry(
    kind="OSWorld getter",
    implementations={
        **_implementations(
            "getters",
            {
                "machine": "cache_file cloud_file vm_file accessibility_tree default_video_player list_directory "
                "vm_command_error vm_command_line vm_screen_size vm_terminal_output vm_wallpaper vm_window_size",
                "rules": "rule rule_relativeTime",
                "applications": "audio_in_slide background_image_in_slide gimp_config_file vlc_config vlc_playing_info "
                "vscode_config",
                "browser": "active_tab_url_parse active_url_from_accessTree url_dashPart url_path_parse "
                "bookmarks chrome_font_size cookie_data data_delete_automacally default_search_engine "
                "enable_do_not_track enable_enhanced_safety_browsing enable_safe_browsing find_installed_extension_name "
                "find_unpacked_extension_path history new_startup_page profile_name shortcuts_on_desktop",
            },
        ),
        **_implementations(
            "getters",
            {
                "pages": "active_tab_html_parse active_tab_info chrome_appearance_mode_ui info_from_website open_tabs_info "
                "page_info pdf_from_url",
            },
            _EXTRA,
        ),
        **_implementations("metrics", {"tables": "content_from_vm_file"}, _EXTRA),
    },
    entry_points="paragent.osworld_getters",
)

METRICS = Registry(
    kind="OSWorld metric",
    implementations={
        **_implementations(
            "metrics",
            {
                "matching": "check_direct_json_object check_include_exclude exact_match fuzzy_match is_extension_installed "
                "is_in_list is_in_vm_clickboard literal_match match_in_list",
                "files": "check_line_number check_list compare_python_pure_text compare_result_files compare_text_file "
                "diff_text_file file_contains check_csv check_json_keybindings check_json_settings compare_config compare_csv "
                "run_sqlite3 check_mp3_meta",
                "browser": "check_font_size check_history_deleted is_added_to_steam_cart is_expected_active_tab_approximate "
                "is_expected_bookmarks is_expected_installed_extensions is_expected_search_query "
                "is_expected_url_pattern_match is_shortcut_on_desktop",
                "applications": "check_auto_saving_time check_config_status check_gnome_favorite_apps check_left_panel "
                "check_moved_jpgs check_presenter_console_disable find_default_font is_utc_0 is_vlc_fullscreen "
                "check_global_key_play_pause check_one_instance_when_started_from_file check_play_and_exit "
                "check_qt_bgcone check_qt_max_volume check_qt_minimal_view check_qt_slider_colours is_vlc_playing "
                "is_vlc_recordings_folder check_thunderbird_filter check_thunderbird_folder check_thunderbird_prefs",
            },
        ),
        **_implementations(
            "metrics",
            {
                "archives": "check_pdf_pages compare_archive compare_epub compare_pdf_images compare_pdfs compare_zip_files",
                "documents": "check_highlighted_words check_italic_font_size_14 check_tabstops compare_docx_files "
                "compare_docx_files_and_ignore_new_lines compare_docx_images compare_docx_tables compare_font_names "
                "compare_line_spacing compare_references compare_subscript_contains compare_unique_train_records "
                "contains_page_break evaluate_colored_words_in_tables evaluate_strike_through_last_paragraph "
                "fuzzy_place_math has_page_numbers_in_footers is_first_line_centered",
                "markup": "check_accessibility_tree check_json compare_htmls is_cookie_deleted is_expected_active_tab "
                "is_expected_tabs",
                "media": "compare_audios compare_videos",
                "images": "check_brightness_decrease_and_structure_sim check_contrast_increase_and_structure_sim "
                "check_file_exists_and_structure_sim check_green_background check_image_file_size check_image_mirror "
                "check_image_size check_palette_and_structure_sim check_saturation_increase_and_structure_sim "
                "check_structure_sim check_structure_sim_resized check_structure_sim_with_threshold "
                "check_textbox_on_leftside check_triangle_position compare_image_list compare_images",
                "slides": "compare_pptx_files check_image_stretch_and_center check_page_number_colors "
                "check_slide_orientation_Portrait check_transition evaluate_presentation_fill_to_rgb_distance",
                "tables": "compare_conference_city_in_order compare_table",
            },
            _EXTRA,
        ),
    },
    entry_points="paragent.osworld_metrics",
)

STRICT = frozenset({"check_green_background", "check_thunderbird_folder"})
"""Metrics with a bug in OSWorld. It is reproduced by default and corrected with `strict_evaluators`."""
ACCOUNTS = {"googledrive_file": "a Google account"}
"""Getters that need an account of the user."""
LEFT_OUT = {
    "check_python_file_by_test_suite": "would run the agent's programs (pygame) on this host",
    "compare_image_text": "reads text in images with a neural network (easyocr, PyTorch)",
    "gotoRecreationPage_and_get_html_content": "finds its expectation by clicking through a public site as of 2024",
}
"""Getters and metrics of OSWorld that are not supported, with the reason."""


def load_metric(name: str) -> None:
    """Import a metric, so that calls that are confined to a folder find it in memory.

    Raises:
        ParagentError: the metric does not exist, or needs something that is not installed.
    """
    METRICS.load(name)
    _import_packages()


def load_parser(function: str) -> None:
    """Import `package.module:function`, so that calls that are confined to a folder find it in memory."""
    import_object(function)
    _import_packages()


def _import_packages() -> None:
    """Import the required packages with one thread of OpenBLAS: each takes 80 MB of the address space, which is limited."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import_required()


def score(name: str, arguments: list[Any], options: dict[str, Any], strict: bool = False) -> float:
    """Return the score of a metric.

    Args:
        name: of the metric.
        arguments: the result, or the result and the expectation.
        options: the task's options of the metric.
        strict: whether a metric with a known bug of OSWorld corrects it.

    Raises:
        UnsupportedCheck: the metric does not support the rules or options.
        Exception: any exception of the metric.
    """
    metric = METRICS.load(name)
    check_options(metric, options)
    if len(arguments) > 1:
        check_rules(metric, arguments[1])
    more = {"strict_evaluators": True} if strict and name in STRICT else {}
    return float(metric(*arguments, **options, **more))


def parse(function: str, arguments: list[Any]) -> Any:
    """Return the result of `package.module:function` for the arguments.

    Raises:
        Exception: any exception of the function.
    """
    return import_object(function)(*arguments)
